/* Shared code of these programs: a check that prints its location when it fails, and a device with the objects that
 * most verbs need. Both ends of each connection are in one process. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Exit status of a program after a failed check. */
#ifndef CHECK_STATUS
#define CHECK_STATUS 1
#endif

#define CHECK(x)                                                                    \
	do {                                                                        \
		errno = 0;                                                          \
		if (!(x)) {                                                         \
			fprintf(stderr, "%s:%d: %s (errno %d)\n", __FILE__, __LINE__, #x, errno); \
			exit(CHECK_STATUS);                                         \
		}                                                                   \
	} while (0)

/* Time after which a step counts as hanging. No step takes this long, even on a busy machine. */
#define PATIENCE_MS 90000

static struct ibv_device **devices;
static struct ibv_context *context;
static struct ibv_pd *pd;
static union ibv_gid gid;
static struct ibv_port_attr port;
/* Exponent of the acknowledgement timeout. */
static uint8_t ack_timeout = 14;

static inline void open_device(void)
{
	CHECK((devices = ibv_get_device_list(NULL)));
	CHECK((context = ibv_open_device(devices[0])));
	CHECK(ibv_query_port(context, 1, &port) == 0);
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	CHECK((pd = ibv_alloc_pd(context)));
}

static inline void close_device(void)
{
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	ibv_free_device_list(devices);
}

static inline struct ibv_qp *create_qp(struct ibv_cq *cq, struct ibv_srq *srq, enum ibv_qp_type type, int depth)
{
	struct ibv_qp_init_attr init = {
		.send_cq = cq,
		.recv_cq = cq,
		.srq = srq,
		.cap = { depth, srq ? 0 : depth, 2, srq ? 0 : 2, 64 },
		.qp_type = type,
	};
	struct ibv_qp *qp;

	CHECK((qp = ibv_create_qp(pd, &init)));
	return qp;
}

static inline void to_init(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_INIT,
		.port_num = 1,
		.qkey = 0x1234,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC,
	};

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			    (qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS)) == 0);
}

static inline void to_rtr(struct ibv_qp *qp, uint32_t peer)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTR,
		.path_mtu = IBV_MTU_1024,
		.dest_qp_num = peer,
		.rq_psn = 7,
		.max_dest_rd_atomic = 4,
		.min_rnr_timer = 12,
		.ah_attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } },
	};

	int mask = IBV_QP_STATE;

	if (qp->qp_type != IBV_QPT_UD)
		mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void to_rts(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = {
		.qp_state = IBV_QPS_RTS,
		.sq_psn = 7,
		.timeout = ack_timeout,
		.retry_cnt = 7,
		.rnr_retry = 7,
		.max_rd_atomic = 4,
	};

	int mask = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (qp->qp_type == IBV_QPT_RC)
		mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	CHECK(ibv_modify_qp(qp, &attr, mask) == 0);
}

static inline void to_error(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_ERR };

	CHECK(ibv_modify_qp(qp, &attr, IBV_QP_STATE) == 0 && qp->state == IBV_QPS_ERR);
}

static inline void start(struct ibv_qp *qp, struct ibv_qp *peer)
{
	to_init(qp);
	to_rtr(qp, peer->qp_num);
	to_rts(qp);
}

static inline void connect_pair(struct ibv_qp *a, struct ibv_qp *b)
{
	start(a, b);
	start(b, a);
}

static inline struct ibv_wc next_completion(struct ibv_cq *cq)
{
	struct ibv_wc wc;
	int found;

	/* Polling drives the device. If no completion arrives, xtask kills this program at its time limit. */
	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0)
		;
	CHECK(found == 1);
	return wc;
}

/* Checks the next event. `kind` is its kind, and `what` its queue pair, completion queue or shared receive queue. */
#define EXPECT_EVENT(kind, what)                                                    \
	do {                                                                        \
		struct pollfd readable = { .fd = context->async_fd, .events = POLLIN }; \
		struct ibv_async_event event;                                       \
                                                                                    \
		CHECK(poll(&readable, 1, PATIENCE_MS) == 1);                        \
		CHECK(ibv_get_async_event(context, &event) == 0);                   \
		CHECK(event.event_type == (kind) && (void *)event.element.qp == (void *)(what)); \
		ibv_ack_async_event(&event);                                        \
	} while (0)

static inline int event_waits(void)
{
	struct pollfd readable = { .fd = context->async_fd, .events = POLLIN };

	return poll(&readable, 1, 0);
}

static inline int post(struct ibv_qp *qp, enum ibv_wr_opcode opcode, uint64_t id, const struct ibv_mr *mr,
		       void *from, uint32_t length, const struct ibv_mr *remote, void *to)
{
	struct ibv_sge sge = { (uintptr_t)from, length, mr->lkey };
	struct ibv_send_wr wr = {
		.wr_id = id,
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = opcode,
		.send_flags = IBV_SEND_SIGNALED,
		.imm_data = htobe32(id),
	};
	struct ibv_send_wr *bad;

	if (remote) {
		wr.wr.rdma.remote_addr = (uintptr_t)to;
		wr.wr.rdma.rkey = remote->rkey;
	}
	return ibv_post_send(qp, &wr, &bad);
}

static inline int post_receive(struct ibv_qp *qp, struct ibv_srq *srq, uint64_t id, const struct ibv_mr *mr,
			       void *to, uint32_t length)
{
	struct ibv_sge sge = { (uintptr_t)to, length, mr->lkey };
	struct ibv_recv_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1 };
	struct ibv_recv_wr *bad;

	return srq ? ibv_post_srq_recv(srq, &wr, &bad) : ibv_post_recv(qp, &wr, &bad);
}
