/* Guarantees of verbs that ready-made programs do not check: every byte of many connections, flushed work requests,
 * events, and objects that exist when a context is closed. */
#include <pthread.h>

#include "common.h"

#define PAIRS 32
#define ROUNDS 40
#define LONGEST 9000
#define SLOT 16384

static char *buffer(size_t length)
{
	void *memory = mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(memory != MAP_FAILED);
	return memory;
}

static struct ibv_mr *registered(void *memory, size_t length)
{
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				       IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC);

	CHECK(mr);
	return mr;
}

/* Fills memory with bytes that depend on pair and round. */
static void fill(char *to, uint32_t length, uint32_t pair, uint32_t round)
{
	uint32_t state = (pair << 16 | round) * 2654435761u + 1;

	for (uint32_t i = 0; i < length; i++) {
		state = state * 1664525u + 1013904223u;
		to[i] = state >> 24;
	}
}

static void expect(const char *at, uint32_t length, uint32_t pair, uint32_t round)
{
	static char wanted[LONGEST];

	fill(wanted, length, pair, round);
	CHECK(memcmp(at, wanted, length) == 0);
}

static uint32_t length_of(uint32_t pair, uint32_t round)
{
	return 1 + (pair * 7919 + round * 104729) % LONGEST;
}

/* SENDs, WRITEs with immediate and READs of many queue pairs at once, over one completion queue. Each byte arrives at
 * its place, and the completions of each queue pair are in order. */
static void every_byte(void)
{
	char *from = buffer(PAIRS * SLOT), *to = buffer(PAIRS * SLOT), *back = buffer(PAIRS * SLOT);
	struct ibv_mr *from_mr = registered(from, PAIRS * SLOT), *to_mr = registered(to, PAIRS * SLOT);
	struct ibv_mr *back_mr = registered(back, PAIRS * SLOT);
	struct ibv_cq *cq = ibv_create_cq(context, PAIRS * 4, NULL, NULL, 0);
	struct ibv_qp *a[PAIRS], *b[PAIRS];

	CHECK(cq);
	for (int pair = 0; pair < PAIRS; pair++) {
		a[pair] = create_qp(cq, NULL, IBV_QPT_RC, 4);
		b[pair] = create_qp(cq, NULL, IBV_QPT_RC, 4);
		connect_pair(a[pair], b[pair]);
	}
	for (uint32_t round = 0; round < ROUNDS; round++) {
		int sent[PAIRS] = { 0 }, received[PAIRS] = { 0 }, read[PAIRS] = { 0 };

		for (int pair = 0; pair < PAIRS; pair++) {
			uint32_t length = length_of(pair, round);
			char *source = from + pair * SLOT, *place = to + pair * SLOT;

			fill(source, length, pair, round);
			memset(place, 0xee, SLOT);
			CHECK(post_receive(b[pair], NULL, pair, to_mr, place, LONGEST) == 0);
			if (round % 2)
				CHECK(post(a[pair], IBV_WR_RDMA_WRITE_WITH_IMM, pair, from_mr, source, length, to_mr,
					   place) == 0);
			else
				CHECK(post(a[pair], IBV_WR_SEND_WITH_IMM, pair, from_mr, source, length, NULL, NULL) == 0);
			/* The READ returns the data written before it. */
			CHECK(post(a[pair], IBV_WR_RDMA_READ, pair, back_mr, back + pair * SLOT, length, to_mr, place) == 0);
		}
		for (int left = PAIRS * 3; left > 0; left--) {
			struct ibv_wc wc = next_completion(cq);
			uint32_t pair = wc.wr_id;

			CHECK(wc.status == IBV_WC_SUCCESS && pair < PAIRS);
			if (wc.opcode == IBV_WC_RDMA_READ) {
				CHECK(wc.qp_num == a[pair]->qp_num && sent[pair] == 1 && !read[pair]++);
				expect(back + pair * SLOT, length_of(pair, round), pair, round);
			} else if (wc.opcode & IBV_WC_RECV) {
				CHECK(wc.qp_num == b[pair]->qp_num && !received[pair]++);
				CHECK(wc.opcode == (round % 2 ? IBV_WC_RECV_RDMA_WITH_IMM : IBV_WC_RECV));
				CHECK(wc.wc_flags & IBV_WC_WITH_IMM && be32toh(wc.imm_data) == pair);
				CHECK(wc.byte_len == length_of(pair, round));
				expect(to + pair * SLOT, wc.byte_len, pair, round);
				CHECK(to[pair * SLOT + wc.byte_len] == (char)0xee);
			} else {
				CHECK(wc.qp_num == a[pair]->qp_num && !read[pair] && !sent[pair]++);
			}
		}
	}
	for (int pair = 0; pair < PAIRS; pair++) {
		CHECK(ibv_destroy_qp(a[pair]) == 0);
		CHECK(ibv_destroy_qp(b[pair]) == 0);
	}
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_dereg_mr(from_mr) == 0 && ibv_dereg_mr(to_mr) == 0 && ibv_dereg_mr(back_mr) == 0);
	munmap(from, PAIRS * SLOT);
	munmap(to, PAIRS * SLOT);
	munmap(back, PAIRS * SLOT);
}

/* A pair of connected queue pairs with a completion queue each, and memory for them. */
struct ends {
	struct ibv_cq *cq[2];
	struct ibv_qp *qp[2];
	struct ibv_srq *srq;
	char *memory;
	struct ibv_mr *mr;
};

static struct ends set_up(int receives_are_shared)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ends own = { .memory = buffer(8192) };

	own.mr = registered(own.memory, 8192);
	if (receives_are_shared)
		CHECK((own.srq = ibv_create_srq(pd, &shared)));
	for (int end = 0; end < 2; end++) {
		CHECK((own.cq[end] = ibv_create_cq(context, 32, NULL, NULL, 0)));
		own.qp[end] = create_qp(own.cq[end], end ? own.srq : NULL, IBV_QPT_RC, 8);
	}
	connect_pair(own.qp[0], own.qp[1]);
	return own;
}

static void tear_down(struct ends own)
{
	for (int end = 0; end < 2; end++) {
		CHECK(ibv_destroy_qp(own.qp[end]) == 0);
		CHECK(ibv_destroy_cq(own.cq[end]) == 0);
	}
	if (own.srq)
		CHECK(ibv_destroy_srq(own.srq) == 0);
	CHECK(ibv_dereg_mr(own.mr) == 0);
	munmap(own.memory, 8192);
	CHECK(event_waits() == 0);
}

/* The completion of the first failed request has the cause of the error. All later requests are flushed in order, even
 * requests that are posted afterwards. The responder gets an event. */
static void flushes(void)
{
	struct ends own = set_up(0);
	struct ibv_mr forged = *own.mr;
	struct ibv_wc wc;

	forged.rkey ^= 0x5500;
	for (uint64_t id = 0; id < 3; id++)
		CHECK(post_receive(own.qp[1], NULL, id, own.mr, own.memory, 64) == 0);
	CHECK(post(own.qp[0], IBV_WR_RDMA_WRITE, 10, own.mr, own.memory, 64, &forged, own.memory) == 0);
	CHECK(post(own.qp[0], IBV_WR_SEND, 11, own.mr, own.memory, 64, NULL, NULL) == 0);
	CHECK(post(own.qp[0], IBV_WR_RDMA_READ, 12, own.mr, own.memory, 64, own.mr, own.memory) == 0);
	wc = next_completion(own.cq[0]);
	CHECK(wc.wr_id == 10 && wc.status == IBV_WC_REM_ACCESS_ERR && wc.qp_num == own.qp[0]->qp_num);
	for (uint64_t id = 11; id < 13; id++) {
		wc = next_completion(own.cq[0]);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == own.qp[0]->qp_num);
	}
	for (uint64_t id = 0; id < 3; id++) {
		wc = next_completion(own.cq[1]);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_WR_FLUSH_ERR && wc.qp_num == own.qp[1]->qp_num);
	}
	EXPECT_EVENT(IBV_EVENT_QP_ACCESS_ERR, own.qp[1]);
	CHECK(post(own.qp[0], IBV_WR_SEND, 13, own.mr, own.memory, 64, NULL, NULL) == 0);
	CHECK(post_receive(own.qp[0], NULL, 14, own.mr, own.memory, 64) == 0);
	for (uint64_t id = 13; id < 15; id++) {
		wc = next_completion(own.cq[0]);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_WR_FLUSH_ERR);
	}
	tear_down(own);

	/* The peer does not respond. */
	own = set_up(0);
	to_error(own.qp[1]);
	CHECK(post(own.qp[0], IBV_WR_SEND, 1, own.mr, own.memory, 64, NULL, NULL) == 0);
	CHECK(post(own.qp[0], IBV_WR_SEND, 2, own.mr, own.memory, 64, NULL, NULL) == 0);
	wc = next_completion(own.cq[0]);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_RETRY_EXC_ERR);
	wc = next_completion(own.cq[0]);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_WR_FLUSH_ERR);
	tear_down(own);
}

/* The RNIC checks scatter/gather elements when it uses them, so a wrong element causes an error completion. */
static void wrong_elements(void)
{
	struct ibv_pd *other_pd = ibv_alloc_pd(context);
	struct ibv_mr *others, *constant, bad;

	CHECK(other_pd);
	for (int attempt = 0; attempt < 4; attempt++) {
		struct ends own = set_up(0);
		struct ibv_wc wc;

		CHECK((others = ibv_reg_mr(other_pd, own.memory, 8192, IBV_ACCESS_LOCAL_WRITE)));
		CHECK((constant = ibv_reg_mr(pd, own.memory, 8192, 0)));
		bad = *own.mr;
		bad.lkey ^= 0x5500;
		if (attempt == 3) {
			/* The receive buffer is not writable. */
			CHECK(post_receive(own.qp[1], NULL, 2, constant, own.memory, 64) == 0);
			CHECK(post(own.qp[0], IBV_WR_SEND, 1, constant, own.memory, 64, NULL, NULL) == 0);
			wc = next_completion(own.cq[1]);
			CHECK(wc.wr_id == 2 && wc.status == IBV_WC_LOC_PROT_ERR);
			wc = next_completion(own.cq[0]);
			CHECK(wc.wr_id == 1 && wc.status == IBV_WC_REM_OP_ERR);
			EXPECT_EVENT(IBV_EVENT_QP_FATAL, own.qp[1]);
		} else {
			const struct ibv_mr *mr = attempt == 0 ? others : attempt == 1 ? &bad : own.mr;

			/* Attempts: a key of another protection domain, an unknown key, and a length that is one byte too long. */
			CHECK(post(own.qp[0], IBV_WR_SEND, 1, mr, own.memory + (attempt == 2 ? 8192 - 63 : 0), 64, NULL,
				   NULL) == 0);
			wc = next_completion(own.cq[0]);
			CHECK(wc.wr_id == 1 && wc.status == IBV_WC_LOC_PROT_ERR);
		}
		CHECK(ibv_dereg_mr(others) == 0 && ibv_dereg_mr(constant) == 0);
		tear_down(own);
	}
	CHECK(ibv_dealloc_pd(other_pd) == 0);
}

/* The limit event comes once, when fewer receives remain than the limit. */
static void shared_receives(void)
{
	struct ends own = set_up(1);
	struct ibv_srq_attr attr = { .srq_limit = 3 };
	struct ibv_wc wc;

	for (uint64_t id = 0; id < 5; id++)
		CHECK(post_receive(NULL, own.srq, id, own.mr, own.memory + 64 * id, 64) == 0);
	CHECK(ibv_modify_srq(own.srq, &attr, IBV_SRQ_LIMIT) == 0);
	CHECK(ibv_query_srq(own.srq, &attr) == 0 && attr.srq_limit == 3 && attr.max_wr >= 8);
	for (uint64_t id = 0; id < 4; id++) {
		CHECK(post(own.qp[0], IBV_WR_SEND, id, own.mr, own.memory, 8, NULL, NULL) == 0);
		wc = next_completion(own.cq[1]);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS && wc.byte_len == 8);
		wc = next_completion(own.cq[0]);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
		CHECK(event_waits() == (id == 2));
		if (id == 2) {
			EXPECT_EVENT(IBV_EVENT_SRQ_LIMIT_REACHED, own.srq);
			CHECK(ibv_query_srq(own.srq, &attr) == 0 && attr.srq_limit == 0);
		}
	}
	/* A queue pair in the error state takes no more receives from the shared queue. */
	to_error(own.qp[1]);
	EXPECT_EVENT(IBV_EVENT_QP_LAST_WQE_REACHED, own.qp[1]);
	tear_down(own);
}

/* The asynchronous events that the other checks do not cover. */
static void events(void)
{
	struct ibv_qp_attr drain = { .qp_state = IBV_QPS_SQD, .en_sqd_async_notify = 1 };
	struct ends own = set_up(0);
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr state;
	struct ibv_qp *late, *early;
	struct ibv_cq *tiny;
	struct ibv_wc wc;

	CHECK(ibv_modify_qp(own.qp[0], &drain, IBV_QP_STATE | IBV_QP_EN_SQD_ASYNC_NOTIFY) == 0);
	EXPECT_EVENT(IBV_EVENT_SQ_DRAINED, own.qp[0]);
	tear_down(own);

	/* The first packet arrives at a queue pair in the state RTR. */
	own = set_up(0);
	early = create_qp(own.cq[0], NULL, IBV_QPT_RC, 4);
	late = create_qp(own.cq[1], NULL, IBV_QPT_RC, 4);
	start(early, late);
	to_init(late);
	CHECK(post_receive(late, NULL, 2, own.mr, own.memory, 64) == 0);
	to_rtr(late, early->qp_num);
	CHECK(post(early, IBV_WR_SEND, 1, own.mr, own.memory, 64, NULL, NULL) == 0);
	CHECK(next_completion(own.cq[1]).wr_id == 2);
	EXPECT_EVENT(IBV_EVENT_COMM_EST, late);
	CHECK(ibv_destroy_qp(early) == 0 && ibv_destroy_qp(late) == 0);
	tear_down(own);

	/* More completions than the queue can hold. */
	own = set_up(0);
	CHECK((tiny = ibv_create_cq(context, 1, NULL, NULL, 0)));
	early = create_qp(tiny, NULL, IBV_QPT_RC, 4);
	late = create_qp(own.cq[1], NULL, IBV_QPT_RC, 4);
	connect_pair(early, late);
	for (uint64_t id = 0; id < 3; id++)
		CHECK(post(early, IBV_WR_RDMA_WRITE, id, own.mr, own.memory, 8, own.mr, own.memory) == 0);
	EXPECT_EVENT(IBV_EVENT_CQ_ERR, tiny);
	while (ibv_poll_cq(tiny, 1, &wc) > 0)
		CHECK(wc.wr_id == 0);
	CHECK(ibv_poll_cq(tiny, 1, &wc) < 0);
	CHECK(ibv_query_qp(early, &state, IBV_QP_STATE, &init) == 0 && state.qp_state == IBV_QPS_ERR);
	CHECK(ibv_destroy_qp(early) == 0 && ibv_destroy_qp(late) == 0);
	CHECK(ibv_destroy_cq(tiny) == 0);
	tear_down(own);
}

/* Each request for a notification causes one notification. A request may exclude unsolicited completions. */
static void notifications(void)
{
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq, *named;
	struct ends own = set_up(0);
	struct ibv_qp *a, *b;
	struct pollfd readable;
	void *told;

	CHECK(channel);
	CHECK((cq = ibv_create_cq(context, 16, own.memory, channel, 0)));
	a = create_qp(own.cq[0], NULL, IBV_QPT_RC, 8);
	b = create_qp(cq, NULL, IBV_QPT_RC, 8);
	connect_pair(a, b);
	readable = (struct pollfd){ .fd = channel->fd, .events = POLLIN | POLLOUT }; /* never writable */
	for (int solicited = 0; solicited < 2; solicited++) {
		struct ibv_sge sge = { (uintptr_t)own.memory, 8, own.mr->lkey };
		struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
		struct ibv_send_wr *bad;

		CHECK(ibv_req_notify_cq(cq, solicited) == 0);
		for (int message = 0; message < 3; message++) {
			CHECK(post_receive(b, NULL, 1, own.mr, own.memory, 64) == 0);
			wr.send_flags = IBV_SEND_SIGNALED | (message ? IBV_SEND_SOLICITED : 0);
			CHECK(ibv_post_send(a, &wr, &bad) == 0);
			CHECK(next_completion(own.cq[0]).status == IBV_WC_SUCCESS);
			CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
			/* The first message, or the first solicited message, causes the only notification. */
			CHECK(poll(&readable, 1, message == solicited ? PATIENCE_MS : 0) == (message == solicited));
			if (message == solicited) {
				CHECK(ibv_get_cq_event(channel, &named, &told) == 0 && named == cq && told == own.memory);
				ibv_ack_cq_events(cq, 1);
			}
		}
	}
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	tear_down(own);
}

/* Checks the attributes that UCX queries before it uses a device's atomics. */
static void atomics_of_adapters(void)
{
	struct ibv_device_attr device;

	CHECK(ibv_query_device(context, &device) == 0);
	CHECK(device.atomic_cap == IBV_ATOMIC_HCA);
}

/* Either all requests between ibv_wr_start and ibv_wr_complete are posted, or no request. */
static void all_or_none(void)
{
	struct ibv_qp_init_attr_ex init = {
		.cap = { 4, 4, 1, 1, 16 },
		.qp_type = IBV_QPT_RC,
		.comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
		.pd = pd,
		.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE,
	};
	struct ends own = set_up(0);
	struct ibv_qp_ex *ex;
	struct ibv_qp *a, *b;
	struct ibv_wc wc;
	char word[32] = "all or none";

	init.send_cq = init.recv_cq = own.cq[0];
	CHECK((a = ibv_create_qp_ex(context, &init)) && (ex = ibv_qp_to_qp_ex(a)));
	b = create_qp(own.cq[1], NULL, IBV_QPT_RC, 4);
	connect_pair(a, b);
	for (int attempt = 0; attempt < 4; attempt++) {
		/* Attempts: too many requests, too many inline bytes in the last request, an abort, and correct requests. */
		int requests = attempt == 0 ? 5 : 4;

		memset(own.memory, 0, 128);
		ibv_wr_start(ex);
		for (int request = 0; request < requests; request++) {
			ex->wr_id = request;
			ex->wr_flags = IBV_SEND_SIGNALED | IBV_SEND_INLINE;
			ibv_wr_rdma_write(ex, own.mr->rkey, (uintptr_t)own.memory + 16 * request);
			ibv_wr_set_inline_data(ex, word, attempt == 1 && request == 3 ? 17 : 16);
		}
		if (attempt == 2)
			ibv_wr_abort(ex);
		else
			CHECK(ibv_wr_complete(ex) == (attempt == 0 ? ENOMEM : attempt == 1 ? EINVAL : 0));
		if (attempt < 3)
			CHECK(ibv_poll_cq(own.cq[0], 1, &wc) == 0 && own.memory[0] == 0);
	}
	for (uint64_t id = 0; id < 4; id++) {
		wc = next_completion(own.cq[0]);
		CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
		CHECK(memcmp(own.memory + 16 * id, word, 16) == 0);
	}
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	tear_down(own);
}

/* Memory of an on-demand region may be unmapped while it is registered. */
static void on_demand(void)
{
	struct ibv_device_attr_ex device;
	struct ends own = set_up(0);
	char *memory = buffer(8192);
	struct ibv_sge sge = { .addr = (uintptr_t)memory, .length = 4096 };
	struct ibv_mr *mr, *all;
	struct ibv_wc wc;

	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	if (!(device.odp_caps.general_caps & IBV_ODP_SUPPORT)) {
		tear_down(own);
		return; /* not supported on an old kernel */
	}
	CHECK(!ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE));
	CHECK((all = ibv_reg_mr(pd, NULL, SIZE_MAX, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_ON_DEMAND)));
	CHECK((mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_ON_DEMAND)));
	sge.lkey = mr->lkey;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, IBV_ADVISE_MR_FLAG_FLUSH, &sge, 1) == 0);
	CHECK(munmap(memory + 4096, 4096) == 0);
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1) == 0);
	sge.length = 4097;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH_WRITE, 0, &sge, 1) == EFAULT);
	sge.lkey ^= 0x5500;
	CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == ENOENT);
	strcpy(own.memory, "on demand");
	CHECK(post(own.qp[0], IBV_WR_RDMA_WRITE, 1, all, own.memory, 10, mr, memory) == 0);
	wc = next_completion(own.cq[0]);
	CHECK(wc.status == IBV_WC_SUCCESS && strcmp(memory, "on demand") == 0);
	CHECK(post(own.qp[0], IBV_WR_RDMA_WRITE, 2, own.mr, own.memory, 10, mr, memory + 4096) == 0);
	wc = next_completion(own.cq[0]);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_REM_ACCESS_ERR);
	EXPECT_EVENT(IBV_EVENT_QP_ACCESS_ERR, own.qp[1]);
	tear_down(own);
	own = set_up(0);
	CHECK(post(own.qp[0], IBV_WR_SEND, 3, all, memory + 4090, 10, NULL, NULL) == 0);
	wc = next_completion(own.cq[0]);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_LOC_PROT_ERR);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_dereg_mr(all) == 0);
	munmap(memory, 4096);
	tear_down(own);
}

/* A null memory region. Sends read zeros from this region, and receives into it discard the data. */
static void no_memory(void)
{
	struct ends own = set_up(0);
	struct ibv_mr *null = ibv_alloc_null_mr(pd);
	struct ibv_sge from[2], to[2];
	struct ibv_send_wr send = { .sg_list = from, .num_sge = 2, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_recv_wr receive = { .sg_list = to, .num_sge = 2 };
	struct ibv_send_wr *bad_send;
	struct ibv_recv_wr *bad_receive;

	CHECK(null);
	memset(own.memory, 'x', 4096);
	from[0] = (struct ibv_sge){ (uintptr_t)own.memory, 8, own.mr->lkey };
	from[1] = to[0] = (struct ibv_sge){ 0, 8, null->lkey };
	to[1] = (struct ibv_sge){ (uintptr_t)own.memory + 100, 8, own.mr->lkey };
	CHECK(ibv_post_recv(own.qp[1], &receive, &bad_receive) == 0);
	CHECK(ibv_post_send(own.qp[0], &send, &bad_send) == 0);
	CHECK(next_completion(own.cq[0]).status == IBV_WC_SUCCESS);
	CHECK(next_completion(own.cq[1]).byte_len == 16);
	CHECK(memcmp(own.memory + 99, "x\0\0\0\0\0\0\0\0x", 10) == 0);
	CHECK(ibv_rereg_mr(null, IBV_REREG_MR_CHANGE_ACCESS, NULL, NULL, 0, 0) != 0);
	CHECK(ibv_dereg_mr(null) == 0);
	tear_down(own);
}

static uint64_t now_ns(void)
{
	struct ibv_values_ex values = { .comp_mask = IBV_VALUES_MASK_RAW_CLOCK };

	CHECK(ibv_query_rt_values_ex(context, &values) == 0 && values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK);
	CHECK(values.raw_clock.tv_sec == 0);
	return values.raw_clock.tv_nsec;
}

static uint64_t since_1970_ns(void)
{
	struct timespec now;

	CHECK(clock_gettime(CLOCK_REALTIME, &now) == 0);
	return now.tv_sec * 1000000000ull + now.tv_nsec;
}

/* Completions have time stamps of the device's clock and of the time of day. */
static void time_stamps(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 8,
		.wc_flags = IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK,
	};
	struct ibv_poll_cq_attr poll_attr = { 0 };
	struct ibv_device_attr_ex device;
	struct ends own = set_up(0);
	uint64_t before, world, last;
	struct ibv_cq_ex *cq;
	struct ibv_qp *a, *b;

	CHECK(ibv_query_device_ex(context, NULL, &device) == 0);
	CHECK(device.hca_core_clock == 1000000 && device.completion_timestamp_mask == UINT64_MAX);
	CHECK((cq = ibv_create_cq_ex(context, &init)));
	a = create_qp(ibv_cq_ex_to_cq(cq), NULL, IBV_QPT_RC, 4);
	b = create_qp(own.cq[1], NULL, IBV_QPT_RC, 4);
	connect_pair(a, b);
	last = before = now_ns();
	world = since_1970_ns();
	for (uint64_t id = 0; id < 3; id++) {
		uint64_t stamp, age;

		CHECK(post(a, IBV_WR_RDMA_WRITE, id, own.mr, own.memory, 8, own.mr, own.memory + 64) == 0);
		while (ibv_start_poll(cq, &poll_attr) == ENOENT)
			;
		CHECK(cq->wr_id == id && cq->status == IBV_WC_SUCCESS);
		stamp = ibv_wc_read_completion_ts(cq);
		CHECK(stamp >= last && stamp <= now_ns());
		last = stamp;
		/* The stamp is not older than `world`, with a margin of one second. */
		age = since_1970_ns() - ibv_wc_read_completion_wallclock_ns(cq);
		CHECK(age < since_1970_ns() - world + 1000000000);
		ibv_end_poll(cq);
	}
	CHECK(last > before);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
	tear_down(own);
}

/* Closing a context destroys all its objects, and peers cannot access its memory any more. */
static void left_behind(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_context *kept = context;
	struct ibv_pd *kept_pd = pd;

	for (int round = 0; round < 20; round++) {
		struct ends own = set_up(0);
		struct ibv_comp_channel *channel;
		struct ibv_qp *peer = create_qp(own.cq[0], NULL, IBV_QPT_RC, 4), *left;
		char *memory = buffer(4096);
		struct ibv_async_event event;
		struct ibv_cq *cq;
		struct ibv_mr *mr, gone;

		CHECK((context = ibv_open_device(devices[0])) && (pd = ibv_alloc_pd(context)));
		CHECK((mr = registered(memory, 4096)));
		CHECK((channel = ibv_create_comp_channel(context)));
		CHECK((cq = ibv_create_cq(context, 1, NULL, channel, 0)));
		CHECK(ibv_create_srq(pd, &shared) && ibv_create_ah(pd, &address) && ibv_alloc_mw(pd, IBV_MW_TYPE_1));
		left = create_qp(cq, NULL, IBV_QPT_RC, 4);
		connect_pair(peer, left);
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		CHECK(post(peer, IBV_WR_RDMA_WRITE, 7, own.mr, own.memory, 8, mr, memory) == 0);
		CHECK(next_completion(own.cq[0]).status == IBV_WC_SUCCESS);
		for (uint64_t id = 0; id < 3; id++)
			CHECK(post(left, IBV_WR_RDMA_WRITE, id, mr, memory, 8, own.mr, own.memory) == 0);
		/* The program never acknowledges these two events. */
		CHECK(ibv_get_async_event(context, &event) == 0 && event.event_type == IBV_EVENT_CQ_ERR);
		{
			struct ibv_cq *named;
			void *told;

			CHECK(ibv_get_cq_event(channel, &named, &told) == 0 && named == cq);
		}
		gone = *mr;
		CHECK(ibv_close_device(context) == 0);
		munmap(memory, 4096);
		context = kept;
		pd = kept_pd;
		if (round == 0) {
			CHECK(post(peer, IBV_WR_RDMA_WRITE, 8, own.mr, own.memory, 8, &gone, memory) == 0);
			CHECK(next_completion(own.cq[0]).status == IBV_WC_RETRY_EXC_ERR);
		}
		CHECK(ibv_destroy_qp(peer) == 0);
		tear_down(own);
	}
}

/* A thread that creates connections, uses them, and destroys them during operations. All threads share a device. */
static void *churn(void *unused)
{
	for (int round = 0; round < 40; round++) {
		struct ends own = set_up(0);

		for (uint64_t id = 0; id < 8; id++) {
			own.memory[0] = id;
			CHECK(post(own.qp[id % 2], id < 4 ? IBV_WR_RDMA_WRITE : IBV_WR_RDMA_READ, id, own.mr, own.memory,
				   3000, own.mr, own.memory + 4096) == 0);
		}
		/* In every second round, most operations are still in progress. */
		for (int left = round % 2 ? 4 : 1; left > 0; left--)
			CHECK(next_completion(own.cq[0]).status == IBV_WC_SUCCESS);
		tear_down(own);
	}
	return unused;
}

static void threads(void)
{
	pthread_t thread[4];

	for (int i = 0; i < 4; i++)
		CHECK(pthread_create(&thread[i], NULL, churn, NULL) == 0);
	for (int i = 0; i < 4; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
}

int main(void)
{
	open_device();
	every_byte();
	flushes();
	wrong_elements();
	shared_receives();
	events();
	notifications();
	atomics_of_adapters();
	all_or_none();
	on_demand();
	no_memory();
	time_stamps();
	left_behind();
	threads();
	close_device();
	return 0;
}
