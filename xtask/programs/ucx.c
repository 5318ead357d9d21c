/* UCX between two processes, with every byte checked: tagged messages, streams, active messages, puts, gets and
 * atomics, in both directions at once.
 *
 * ucx [TRANSPORT...]: the endpoint must use each of these transports, which have the names of ucp_ep_print_info.
 * UCX_TLS selects the transports. */
#include <pthread.h>

#include "ucx.h"

#define BATCH 6
#define GUARD 64
#define LONGEST ((16 << 20) + 5)
#define THREADS 4

static const size_t SIZES[] = { 1, 8, 100, 1024, 8192, 65536 + 3, (1 << 20) + 1, LONGEST };

#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static struct line line;

/* Returns the number of messages of a size in flight. It is high for short messages, which must share packets and
 * queues. */
static int batch_of(size_t size)
{
	return size < 10000 ? 10 * BATCH : size < LONGEST ? BATCH : 1;
}

static uint64_t seed_of(int from, size_t size, int number)
{
	return (uint64_t)from << 60 ^ (uint64_t)size << 20 ^ number;
}

/* Returns memory for a message, followed by guard bytes that must stay unchanged. */
static char *room(size_t size)
{
	char *memory = malloc(size + GUARD);

	CHECK(memory);
	memset(memory, 0xee, size + GUARD);
	return memory;
}

static void expect_message(const char *memory, int from, size_t size, int number)
{
	expect(memory, size, seed_of(from, size, number));
	for (int i = 0; i < GUARD; i++)
		CHECK(memory[size + i] == (char)0xee);
}

static char *message(size_t size, int number)
{
	char *memory = room(size);

	fill(memory, size, seed_of(rank, size, number));
	return memory;
}

struct received {
	size_t length;
	ucp_tag_t tag;
	int done;
};

static void on_tag(void *request, ucs_status_t status, const ucp_tag_recv_info_t *info, void *user)
{
	struct received *received = user;

	CHECK_UCS(status);
	*received = (struct received){ info->length, info->sender_tag, 1 };
	(void)request;
}

/* Tagged messages. Receives are posted in another order than sends, before or after them. */
static void tags(struct line *line, size_t size, int batch, int is_early, int is_sync, uint64_t base)
{
	struct received received[10 * BATCH] = { 0 };
	ucs_status_ptr_t receives[10 * BATCH], sends[10 * BATCH];
	char *from[10 * BATCH], *to[10 * BATCH];
	ucp_request_param_t none = { 0 };

	for (int i = 0; i < batch; i++) {
		from[i] = message(size, i);
		to[i] = room(size);
	}
	for (int half = 0; half < 2; half++) {
		if (half == is_early) {
			for (int i = 0; i < batch; i++) {
				ucp_request_param_t param = {
					.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
							UCP_OP_ATTR_FLAG_NO_IMM_CMPL,
					.cb.recv = on_tag,
					.user_data = &received[i],
				};

				receives[i] = ucp_tag_recv_nbx(line->worker, to[i], size, base + i, ~0ull, &param);
				CHECK(UCS_PTR_IS_PTR(receives[i]));
			}
		} else {
			for (int i = batch; i-- > 0;)
				sends[i] = is_sync ? ucp_tag_send_sync_nbx(line->ep, from[i], size, base + i, &none) :
					   ucp_tag_send_nbx(line->ep, from[i], size, base + i, &none);
			/* Let the messages arrive first. UCX keeps an unexpected message until the program posts its receive. */
			for (int turn = 0; turn < 100; turn++)
				ucp_worker_progress(line->worker);
		}
	}
	for (int i = 0; i < batch; i++) {
		CHECK_UCS(outcome_of(line->worker, receives[i]));
		CHECK(received[i].done && received[i].length == size && received[i].tag == base + i);
		expect_message(to[i], !rank, size, i);
	}
	for (int i = 0; i < batch; i++) {
		CHECK_UCS(outcome_of(line->worker, sends[i]));
		free(from[i]);
		free(to[i]);
	}
}

static void streams(size_t size)
{
	ucp_request_param_t none = { 0 }, all = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS,
		.flags = UCP_STREAM_RECV_FLAG_WAITALL,
	};
	ucs_status_ptr_t sends[10 * BATCH];
	char *from[10 * BATCH], *to = room(size);
	int batch = batch_of(size);
	size_t length;

	for (int i = 0; i < batch; i++) {
		from[i] = message(size, i);
		sends[i] = ucp_stream_send_nbx(line.ep, from[i], size, &none);
	}
	for (int i = 0; i < batch; i++) {
		CHECK_UCS(outcome_of(line.worker, ucp_stream_recv_nbx(line.ep, to, size, &length, &all)));
		expect_message(to, !rank, size, i);
	}
	for (int i = 0; i < batch; i++) {
		CHECK_UCS(outcome_of(line.worker, sends[i]));
		free(from[i]);
	}
	free(to);
}

struct header {
	uint64_t size;
	int64_t number;
};

static int arrived;
static char *rendezvous[10 * BATCH];
static ucs_status_ptr_t fetches[10 * BATCH];

static ucs_status_t on_active(void *unused, const void *header, size_t header_length, void *data, size_t length,
			      const ucp_am_recv_param_t *param)
{
	ucp_request_param_t none = { 0 };
	struct header own;

	CHECK(header_length == sizeof(own));
	memcpy(&own, header, sizeof(own));
	CHECK(own.size == length && own.number < 10 * BATCH);
	arrived++;
	if (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) {
		rendezvous[own.number] = room(length);
		fetches[own.number] = ucp_am_recv_data_nbx(line.worker, data, rendezvous[own.number], length, &none);
		return UCS_INPROGRESS;
	}
	expect(data, length, seed_of(!rank, length, own.number));
	(void)unused;
	return UCS_OK;
}

static void active(size_t size)
{
	ucp_request_param_t none = { 0 };
	ucs_status_ptr_t sends[10 * BATCH];
	struct header headers[10 * BATCH];
	char *from[10 * BATCH];
	int batch = batch_of(size);

	arrived = 0;
	meet(line.worker); /* the other process must not send before the counter is 0 */
	for (int i = 0; i < batch; i++) {
		from[i] = message(size, i);
		headers[i] = (struct header){ size, i };
		sends[i] = ucp_am_send_nbx(line.ep, 7, &headers[i], sizeof(headers[i]), from[i], size, &none);
	}
	while (arrived < batch)
		ucp_worker_progress(line.worker);
	for (int i = 0; i < batch; i++) {
		if (rendezvous[i]) {
			CHECK_UCS(outcome_of(line.worker, fetches[i]));
			expect_message(rendezvous[i], !rank, size, i);
			free(rendezvous[i]);
			rendezvous[i] = NULL;
		}
		CHECK_UCS(outcome_of(line.worker, sends[i]));
		free(from[i]);
	}
	meet(line.worker);
}

/* Memory that the other process may access, and the address and key of the other process's memory. */
struct shared {
	char *memory;
	ucp_mem_h handle;
	uint64_t address;
	ucp_rkey_h rkey;
};

static struct shared share(size_t length)
{
	struct shared own = { .memory = room(length) };
	ucp_mem_map_params_t params = {
		.field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH,
		.address = own.memory,
		.length = length,
	};
	uint64_t told[2], heard[2];
	size_t key_length;
	void *key, *other;

	CHECK_UCS(ucp_mem_map(context, &params, &own.handle));
	CHECK_UCS(ucp_rkey_pack(context, own.handle, &key, &key_length));
	told[0] = (uintptr_t)own.memory;
	told[1] = key_length;
	exchange(line.worker, told, heard, sizeof(told));
	CHECK((other = malloc(heard[1])));
	all_of(line.worker, 0, key, key_length);
	all_of(line.worker, 1, other, heard[1]);
	own.address = heard[0];
	CHECK_UCS(ucp_ep_rkey_unpack(line.ep, other, &own.rkey));
	ucp_rkey_buffer_release(key);
	free(other);
	return own;
}

static void unshare_memory(struct shared *own)
{
	meet(line.worker);
	ucp_rkey_destroy(own->rkey);
	CHECK_UCS(ucp_mem_unmap(context, own->handle));
	free(own->memory);
}

/* A put is complete once it has flushed. A get returns the data that was there. */
static void one_sided(struct shared *shared, size_t size)
{
	ucp_request_param_t none = { 0 };
	ucs_status_ptr_t requests[10 * BATCH];
	char *from[10 * BATCH], *to[10 * BATCH];
	size_t slot = size + 1;
	int batch = batch_of(size);

	for (int i = 0; i < batch; i++) {
		from[i] = message(size, i);
		to[i] = room(size);
		requests[i] = ucp_put_nbx(line.ep, from[i], size, shared->address + i * slot, shared->rkey, &none);
	}
	for (int i = 0; i < batch; i++)
		CHECK_UCS(outcome_of(line.worker, requests[i]));
	flush(&line);
	meet(line.worker);
	for (int i = 0; i < batch; i++) {
		expect(shared->memory + i * slot, size, seed_of(!rank, size, i));
		CHECK(shared->memory[i * slot + size] == (char)0xee);
		fill(shared->memory + i * slot, size, seed_of(rank, size, 1000 + i));
	}
	meet(line.worker);
	for (int i = 0; i < batch; i++)
		requests[i] = ucp_get_nbx(line.ep, to[i], size, shared->address + i * slot, shared->rkey, &none);
	for (int i = 0; i < batch; i++) {
		CHECK_UCS(outcome_of(line.worker, requests[i]));
		expect_message(to[i], !rank, size, 1000 + i);
		free(from[i]);
		free(to[i]);
	}
	flush(&line);
	meet(line.worker);
	memset(shared->memory, 0xee, batch * slot);
	meet(line.worker);
}

#define ADDS 100

static uint64_t atomic(ucp_atomic_op_t op, const struct shared *shared, size_t at, size_t width, uint64_t operand,
		       uint64_t *reply)
{
	ucp_request_param_t param = {
		.op_attr_mask = UCP_OP_ATTR_FIELD_DATATYPE | (reply ? UCP_OP_ATTR_FIELD_REPLY_BUFFER : 0),
		.datatype = ucp_dt_make_contig(width),
		.reply_buffer = reply,
	};
	ucs_status_ptr_t request = ucp_atomic_op_nbx(line.ep, op, &operand, 1, shared->address + at, shared->rkey, &param);

	CHECK_UCS(outcome_of(line.worker, request));
	return reply ? (width == 4 ? (uint32_t)*reply : *reply) : 0;
}

static uint64_t load(const struct shared *shared, size_t at, size_t width)
{
	uint64_t word = 0;

	memcpy(&word, shared->memory + at, width);
	return word;
}

/* Atomics of both processes at once, each on known values in the memory of the other process. Verbs offer only
 * fetch-and-add and compare-and-swap of 64 bits. UCX emulates other atomics with messages to the target's worker. */
static void atomics(struct shared *shared, size_t width)
{
	uint64_t mask = width == 4 ? UINT32_MAX : UINT64_MAX, reply, before;
	size_t at = 64;

	memset(shared->memory, 0, 128);
	meet(line.worker);
	for (uint64_t i = 0; i < ADDS; i++) {
		atomic(UCP_ATOMIC_OP_ADD, shared, at, width, 3, NULL);
		reply = 0;
		before = atomic(UCP_ATOMIC_OP_ADD, shared, at, width, mask, &reply); /* adds -1 */
		CHECK(before == i * 2 + 3);
	}
	reply = 5;
	before = atomic(UCP_ATOMIC_OP_CSWAP, shared, at, width, 1, &reply); /* the value is not 1, so nothing changes */
	CHECK(before == ADDS * 2);
	reply = 0x1122334455667788;
	before = atomic(UCP_ATOMIC_OP_CSWAP, shared, at, width, ADDS * 2, &reply);
	CHECK(before == ADDS * 2);
	reply = 0;
	before = atomic(UCP_ATOMIC_OP_ADD, shared, at, width, 0, &reply);
	CHECK(before == (0x1122334455667788 & mask));
	reply = 0;
	before = atomic(UCP_ATOMIC_OP_SWAP, shared, at, width, 0xf0f0, &reply);
	CHECK(before == (0x1122334455667788 & mask));
	atomic(UCP_ATOMIC_OP_AND, shared, at, width, 0xff00, NULL);
	atomic(UCP_ATOMIC_OP_OR, shared, at, width, 0x000f, NULL);
	atomic(UCP_ATOMIC_OP_XOR, shared, at, width, 0x0ff0, NULL);
	flush(&line);
	meet(line.worker);
	CHECK(load(shared, at, width) == 0xffff);
	/* Adjacent words are unchanged. */
	CHECK(load(shared, at - 8, 8) == 0 && load(shared, at + width, 8) == 0);
	meet(line.worker);
}

/* Each thread has a worker, and a peer in the other process. */
static void *thread(void *place)
{
	struct line *own = place;

	for (uint64_t round = 0; round < 3; round++)
		for (int size = 0; size < COUNT(SIZES) - 2; size++)
			tags(own, SIZES[size], 4, round & 1, 0, round << 32 | size << 16);
	return NULL;
}

static void threads(void)
{
	struct line lines[THREADS];
	pthread_t ids[THREADS];

	for (int i = 0; i < THREADS; i++) {
		lines[i].worker = create_worker();
		lines[i].ep = connect_to(lines[i].worker, NULL, NULL);
	}
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&ids[i], NULL, thread, &lines[i]) == 0);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(ids[i], NULL) == 0);
	for (int i = 0; i < THREADS; i++)
		close_line(&lines[i]);
}

static void expect_transports(char **names)
{
	char *text = NULL;
	size_t length = 0;
	FILE *out = open_memstream(&text, &length);

	CHECK(out);
	ucp_ep_print_info(line.ep, out);
	fclose(out);
	for (; *names; names++) {
		if (!strstr(text, *names)) {
			fprintf(stderr, "%s is not used:\n%s", *names, text);
			exit(1);
		}
	}
	free(text);
}

static void step(const char *name)
{
	static double last;
	double time = now();

	if (rank == 0 && last > 0)
		printf("%-24s %6.2f s\n", name, time - last);
	last = time;
	fflush(stdout);
}

static void open_line(void)
{
	ucp_am_handler_param_t handler = {
		.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_CB,
		.id = 7,
		.cb = on_active,
	};

	open_context(UCP_FEATURE_TAG | UCP_FEATURE_STREAM | UCP_FEATURE_AM | UCP_FEATURE_RMA | UCP_FEATURE_AMO32 |
		     UCP_FEATURE_AMO64);
	line.worker = create_worker();
	CHECK_UCS(ucp_worker_set_am_recv_handler(line.worker, &handler));
	line.ep = connect_to(line.worker, NULL, NULL);
}

int main(int count, char **arguments)
{
	struct shared shared;

	(void)count;
	two_processes();
	step("");
	open_line();
	for (int size = 0; size < COUNT(SIZES); size++)
		for (int way = 0; way < (SIZES[size] < LONGEST ? 4 : 1); way++)
			tags(&line, SIZES[size], batch_of(SIZES[size]), way & 1, way >> 1, 1000 * way);
	meet(line.worker);
	expect_transports(arguments + 1);
	step("tags");
	for (int size = 0; size < COUNT(SIZES); size++)
		streams(SIZES[size]);
	step("streams");
	for (int size = 0; size < COUNT(SIZES); size++)
		active(SIZES[size]);
	step("active messages");
	shared = share(LONGEST + 10 * BATCH * 8200);
	for (int size = 0; size < COUNT(SIZES); size++)
		one_sided(&shared, SIZES[size]);
	step("puts and gets");
	atomics(&shared, 4);
	atomics(&shared, 8);
	step("atomics");
	unshare_memory(&shared);
	threads();
	step("threads");
	close_line(&line);
	ucp_cleanup(context);
	one_process();
	return 0;
}
