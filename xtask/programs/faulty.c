/* Calls, posts and completions that a fault plan fails. `OWN` in xtask/src/programs.rs has the plan. */
#include "common.h"

#define BYTES 64
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ)

static char memory[4 * BYTES];
static struct ibv_mr *mr;
static struct ibv_cq *cq;

static int write_to_peer(struct ibv_qp *qp, uint64_t id)
{
	return post(qp, IBV_WR_RDMA_WRITE, id, mr, memory, BYTES, mr, memory + 2 * BYTES);
}

static void expect(uint64_t id, enum ibv_wc_status status)
{
	struct ibv_wc wc = next_completion(cq);

	CHECK(wc.wr_id == id && wc.status == status);
}

static enum ibv_qp_state state_of(struct ibv_qp *qp)
{
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;

	CHECK(ibv_query_qp(qp, &attr, IBV_QP_STATE, &init) == 0);
	return attr.qp_state;
}

int main(void)
{
	struct ibv_qp_attr attr = { .qp_state = IBV_QPS_INIT, .port_num = 1 };
	struct ibv_comp_channel *channel;
	struct ibv_qp *a, *b;
	struct ibv_cq *of;
	uint64_t ids = 0;
	void *own;
	int count;

	/* A program that calls again after an error succeeds. */
	open_device();
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK(!ibv_create_cq(context, 16, NULL, channel, 0) && errno == ENOMEM);
	CHECK((cq = ibv_create_cq(context, 16, NULL, channel, 0)));
	CHECK(!ibv_reg_mr(pd, memory, sizeof(memory), ALL) && errno == EAGAIN);
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), ALL)));
	a = create_qp(cq, NULL, IBV_QPT_RC, 8);
	b = create_qp(cq, NULL, IBV_QPT_RC, 8);
	CHECK(ibv_modify_qp(a, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS) == ETIMEDOUT);
	CHECK(state_of(a) == IBV_QPS_RESET);
	connect_pair(a, b);

	/* The program sees the receive later, and is notified then. */
	CHECK(post_receive(b, NULL, 1, mr, memory, BYTES) == 0);
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(post(a, IBV_WR_SEND, 2, mr, memory + BYTES, BYTES, NULL, NULL) == 0);
	CHECK(ibv_get_cq_event(channel, &of, &own) == 0 && of == cq);
	ibv_ack_cq_events(cq, 1);
	for (count = 0; count < 2; count++) {
		struct ibv_wc wc = next_completion(cq);

		CHECK(wc.status == IBV_WC_SUCCESS);
		ids += wc.wr_id;
	}
	CHECK(ids == 3);

	/* A refused post leaves no request. */
	CHECK(post(a, IBV_WR_SEND, 3, mr, memory, BYTES, NULL, NULL) == EIO);
	CHECK(post(a, IBV_WR_RDMA_READ, 4, mr, memory, BYTES, mr, memory + 2 * BYTES) == 0);
	expect(4, IBV_WC_SUCCESS);
	EXPECT_EVENT(IBV_EVENT_QP_ACCESS_ERR, a);
	CHECK(state_of(a) == IBV_QPS_RTS);

	/* A bad completion ends the queue pair. */
	CHECK(write_to_peer(a, 5) == 0);
	expect(5, IBV_WC_SUCCESS);
	CHECK(write_to_peer(a, 6) == 0);
	expect(6, IBV_WC_REM_OP_ERR);
	CHECK(state_of(a) == IBV_QPS_ERR);
	CHECK(write_to_peer(a, 7) == 0);
	expect(7, IBV_WC_WR_FLUSH_ERR);

	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_device();
	return 0;
}
