/* Two processes that move bytes through librpma: `rpma server PORT` offers memory, and `rpma client PORT WAY` writes
 * and reads it. Both compare all bytes. The ways are `data`, `speed` and `killed`. With `speed`, the client prints the
 * time of small writes and the throughput of large ones. With `killed`, it writes until the server is gone, and expects
 * an error. */
#include <infiniband/verbs.h>
#include <librpma.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(x)                                                                    \
	do {                                                                        \
		if (!(x)) {                                                         \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x);     \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

#define ADDRESS "127.0.0.1"
#define MEMORY (1 << 20)
#define ROUNDS 5
#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* One byte, less than a packet, several packets, and the largest transfer. */
static const uint32_t SIZES[] = { 1, 1000, 65536, MEMORY };

enum order { COMPARE_AND_FILL, LOOP, END };

/* Message of the client. The server returns it after it has compared the bytes of `seed`, and filled its memory with
 * those of `seed + 1`. */
struct message {
	uint32_t order, seed, length;
};

/* Memory that both ends register: bytes that move, and then the messages. */
static struct {
	unsigned char bytes[MEMORY];
	struct message in, out;
} *own;

#define IN offsetof(typeof(*own), in)
#define OUT offsetof(typeof(*own), out)

static struct rpma_peer *peer;
static struct rpma_mr_local *local;
static struct rpma_conn *connection;
static struct rpma_cq *queue;

static unsigned char byte_of(uint32_t seed, uint32_t at)
{
	return (at * 31 ^ at >> 8 ^ at >> 16) + seed * 7;
}

static void fill(uint32_t seed, uint32_t length)
{
	for (uint32_t at = 0; at < length; at++)
		own->bytes[at] = byte_of(seed, at);
}

static void compare(uint32_t seed, uint32_t length)
{
	for (uint32_t at = 0; at < length; at++)
		CHECK(own->bytes[at] == byte_of(seed, at));
}

static void open_device(enum rpma_util_ibv_context_type type)
{
	const int usage = RPMA_MR_USAGE_READ_SRC | RPMA_MR_USAGE_READ_DST | RPMA_MR_USAGE_WRITE_SRC |
			  RPMA_MR_USAGE_WRITE_DST | RPMA_MR_USAGE_FLUSH_TYPE_VISIBILITY | RPMA_MR_USAGE_SEND |
			  RPMA_MR_USAGE_RECV;
	struct ibv_context *device;

	CHECK((own = aligned_alloc(4096, (sizeof(*own) + 4095) / 4096 * 4096)));
	memset(own, 0, sizeof(*own));
	CHECK(rpma_utils_get_ibv_context(ADDRESS, type, &device) == 0);
	CHECK(rpma_peer_new(device, &peer) == 0);
	CHECK(rpma_mr_reg(peer, own, sizeof(*own), usage, &local) == 0);
}

static void expect_event(enum rpma_conn_event expected)
{
	enum rpma_conn_event event;

	CHECK(rpma_conn_next_event(connection, &event) == 0 && event == expected);
}

static void close_device(void)
{
	CHECK(rpma_conn_delete(&connection) == 0);
	CHECK(rpma_mr_dereg(&local) == 0);
	CHECK(rpma_peer_delete(&peer) == 0);
	free(own);
}

/* Waits for the next completion. */
static struct ibv_wc completion(void)
{
	struct ibv_wc wc;
	int result;

	while ((result = rpma_cq_get_wc(queue, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
		CHECK(rpma_cq_wait(queue) == 0);
	CHECK(result == 0);
	return wc;
}

static void expect(enum ibv_wc_opcode opcode)
{
	struct ibv_wc wc = completion();

	CHECK(wc.status == IBV_WC_SUCCESS && wc.opcode == opcode);
}

/* Sends an order, and waits for the answer. */
static void ask(enum order order, uint32_t seed, uint32_t length)
{
	int answers = 0;

	own->out = (struct message){ order, seed, length };
	CHECK(rpma_recv(connection, local, IN, sizeof(own->in), NULL) == 0);
	CHECK(rpma_send(connection, local, OUT, sizeof(own->out), RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = completion();

		CHECK(wc.status == IBV_WC_SUCCESS);
		answers += wc.opcode == IBV_WC_RECV;
	}
	CHECK(answers == 1 && memcmp(&own->in, &own->out, sizeof(own->in)) == 0);
}

/* Waits for the next order. If the acknowledgement of the last answer is lost, the next order may arrive before the
 * completion of this answer. */
static enum order next_order(void)
{
	struct ibv_wc wc;

	do {
		wc = completion();
		CHECK(wc.status == IBV_WC_SUCCESS);
	} while (wc.opcode != IBV_WC_RECV);
	return own->in.order;
}

static void serve(const char *port)
{
	struct rpma_conn_private_data description;
	struct rpma_conn_req *request;
	struct rpma_ep *listener;
	unsigned char descriptor[UINT8_MAX];
	size_t length;

	open_device(RPMA_UTIL_IBV_CONTEXT_LOCAL);
	CHECK(rpma_ep_listen(peer, ADDRESS, port, &listener) == 0);
	CHECK(rpma_ep_next_conn_req(listener, NULL, &request) == 0);
	CHECK(rpma_conn_req_recv(request, local, IN, sizeof(own->in), NULL) == 0);
	CHECK(rpma_mr_get_descriptor_size(local, &length) == 0 && length <= sizeof(descriptor));
	CHECK(rpma_mr_get_descriptor(local, descriptor) == 0);
	description = (struct rpma_conn_private_data){ descriptor, length };
	CHECK(rpma_conn_req_connect(&request, &description, &connection) == 0);
	expect_event(RPMA_CONN_ESTABLISHED);
	CHECK(rpma_conn_get_cq(connection, &queue) == 0);
	for (enum order order = COMPARE_AND_FILL; order != END;) {
		order = next_order();
		own->out = own->in;
		if (order == COMPARE_AND_FILL) {
			compare(own->in.seed, own->in.length);
			fill(own->in.seed + 1, own->in.length);
		}
		if (order != END)
			CHECK(rpma_recv(connection, local, IN, sizeof(own->in), NULL) == 0);
		CHECK(rpma_send(connection, local, OUT, sizeof(own->out), RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
		if (order == LOOP) {
			printf("ready to be killed\n");
			fflush(stdout);
		}
	}
	expect_event(RPMA_CONN_CLOSED);
	CHECK(rpma_conn_disconnect(connection) == 0);
	close_device();
	CHECK(rpma_ep_shutdown(&listener) == 0);
	printf("all bytes are right\n");
}

/* Writes until the server is gone. */
static void until_killed(struct rpma_mr_remote *remote)
{
	ask(LOOP, 0, 0);
	for (;;) {
		struct ibv_wc wc;

		if (rpma_write(connection, remote, 0, local, 0, MEMORY, RPMA_F_COMPLETION_ALWAYS, NULL) != 0) {
			printf("the peer is gone: the write is rejected\n");
			return;
		}
		wc = completion();
		if (wc.status != IBV_WC_SUCCESS) {
			printf("the peer is gone: %s\n", ibv_wc_status_str(wc.status));
			return;
		}
	}
}

static void write_and_read(struct rpma_mr_remote *remote, uint32_t seed, uint32_t length)
{
	fill(seed, length);
	CHECK(rpma_write(connection, remote, 0, local, 0, length, RPMA_F_COMPLETION_ON_ERROR, NULL) == 0);
	CHECK(rpma_flush(connection, remote, 0, length, RPMA_FLUSH_TYPE_VISIBILITY, RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
	expect(IBV_WC_RDMA_READ);
	ask(COMPARE_AND_FILL, seed, length);
	memset(own->bytes, 0, length);
	CHECK(rpma_read(connection, local, 0, remote, 0, length, RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
	expect(IBV_WC_RDMA_READ);
	compare(seed + 1, length);
}

/* Writes 8 bytes at once, and reads them back. */
static void write_word(struct rpma_mr_remote *remote)
{
	const char word[8] = "in order";

	CHECK(rpma_atomic_write(connection, remote, 64, word, RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
	expect(IBV_WC_RDMA_WRITE);
	CHECK(rpma_read(connection, local, 0, remote, 64, sizeof(word), RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
	expect(IBV_WC_RDMA_READ);
	CHECK(memcmp(own->bytes, word, sizeof(word)) == 0);
}

static double now(void)
{
	struct timespec time;

	CHECK(clock_gettime(CLOCK_MONOTONIC, &time) == 0);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Seconds of a measurement, and of the same writes before it. */
#define MEASURED 0.6
#define WARM_UP 0.2

/* Returns the mean time in seconds of writes, each one after the other. */
static double seconds_per_write(struct rpma_mr_remote *remote, uint32_t seed, uint32_t length)
{
	const double limits[] = { WARM_UP, MEASURED };
	double took = 0;
	int count = 1;

	fill(seed, length);
	for (size_t i = 0; i < COUNT(limits); i++) {
		const double begun = now();

		for (count = 0; (took = now() - begun) < limits[i]; count++) {
			struct ibv_wc wc;
			int result;

			CHECK(rpma_write(connection, remote, 0, local, 0, length, RPMA_F_COMPLETION_ALWAYS, NULL) == 0);
			while ((result = rpma_cq_get_wc(queue, 1, &wc, NULL)) == RPMA_E_NO_COMPLETION)
				continue;
			CHECK(result == 0 && wc.status == IBV_WC_SUCCESS);
		}
	}
	ask(COMPARE_AND_FILL, seed, length);
	return took / count;
}

static void run_client(const char *port, const char *way)
{
	struct rpma_conn_private_data description;
	struct rpma_mr_remote *remote;
	struct rpma_conn_req *request;
	uint32_t seed = 0;
	size_t length;

	open_device(RPMA_UTIL_IBV_CONTEXT_REMOTE);
	CHECK(rpma_conn_req_new(peer, ADDRESS, port, NULL, &request) == 0);
	CHECK(rpma_conn_req_connect(&request, NULL, &connection) == 0);
	expect_event(RPMA_CONN_ESTABLISHED);
	CHECK(rpma_conn_get_cq(connection, &queue) == 0);
	CHECK(rpma_conn_get_private_data(connection, &description) == 0 && description.ptr);
	/* librdmacm may append zeros to private data, and all descriptors have the same size. */
	CHECK(rpma_mr_get_descriptor_size(local, &length) == 0 && length <= description.len);
	CHECK(rpma_mr_remote_from_descriptor(description.ptr, length, &remote) == 0);
	if (strcmp(way, "killed") == 0) {
		until_killed(remote);
		return;
	}
	if (strcmp(way, "speed") == 0) {
		double small = seconds_per_write(remote, 0, 8);
		double large = seconds_per_write(remote, 2, MEMORY);

		printf("one write, 8 B: %.2f us\nwrites, 1 MiB: %.0f MB/s\n", small * 1e6, MEMORY / large / 1e6);
	} else {
		for (int round = 0; round < ROUNDS; round++)
			for (size_t i = 0; i < COUNT(SIZES); i++, seed += 2)
				write_and_read(remote, seed, SIZES[i]);
		write_word(remote);
	}
	ask(END, 0, 0);
	CHECK(rpma_conn_disconnect(connection) == 0);
	expect_event(RPMA_CONN_CLOSED);
	CHECK(rpma_mr_remote_delete(&remote) == 0);
	close_device();
	printf("all bytes are right\n");
}

int main(int count, char **arguments)
{
	CHECK(count >= 3);
	if (strcmp(arguments[1], "server") == 0)
		serve(arguments[2]);
	else
		run_client(arguments[2], count > 3 ? arguments[3] : "data");
	return 0;
}
