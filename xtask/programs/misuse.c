/* Calls that verbs must reject, and the use of a device in a forked child. Each rejected call returns the documented
 * errno, and all objects can be destroyed afterwards. */
#include <sys/wait.h>

#include "common.h"

static char memory[4096];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

static void regions(void)
{
	void *constant = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	struct ibv_mr *readable;

	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, constant, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EFAULT);
	CHECK(!ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL);
	CHECK(!ibv_reg_mr(pd, memory, 4096, 1 << 15) && errno == EOPNOTSUPP);
	CHECK((readable = ibv_reg_mr(pd, constant, 4096, 0)));
	CHECK(ibv_dereg_mr(readable) == 0);
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) != 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_reg_mr(NULL, memory, 4096, IBV_ACCESS_LOCAL_WRITE) && errno == EINVAL);
}

static void queues(struct ibv_comp_channel *channel)
{
	struct ibv_qp_init_attr init = { .cap = { 4, 4, 1, 1, 64 }, .qp_type = IBV_QPT_RC }, other;
	struct ibv_qp_attr reset_to_rts = { .qp_state = IBV_QPS_RTS };
	struct ibv_send_wr send = { 0 }, *bad_send = NULL;
	struct ibv_recv_wr receive = { 0 }, *bad_receive = NULL;
	struct ibv_srq_init_attr empty = { 0 };
	struct ibv_ah_attr local = { .port_num = 1 };

	CHECK(!ibv_create_cq(context, 0, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, -1, NULL, NULL, 0) && errno == EINVAL);
	CHECK(!ibv_create_cq(context, 4, NULL, NULL, 1) && errno == EINVAL);
	CHECK((cq = ibv_create_cq(context, 4, NULL, channel, 0)));
	CHECK(ibv_destroy_comp_channel(channel) == EBUSY);
	CHECK(ibv_resize_cq(cq, 0) == EINVAL && cq->cqe == 4);
	CHECK(ibv_resize_cq(cq, 9) == 0 && cq->cqe == 9);
	CHECK(!ibv_create_srq(pd, &empty) && errno == EINVAL);
	CHECK(!ibv_create_ah(pd, &local) && errno == EINVAL);

	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.send_cq = init.recv_cq = cq;
	other = init;
	other.qp_type = IBV_QPT_RAW_PACKET;
	CHECK(!ibv_create_qp(pd, &other) && errno == EOPNOTSUPP);
	other.qp_type = 99;
	CHECK(!ibv_create_qp(pd, &other) && errno == EINVAL);
	other = init;
	other.cap.max_send_wr = 1 << 30;
	CHECK(!ibv_create_qp(pd, &other) && errno == EINVAL);
	CHECK((qp = ibv_create_qp(pd, &init)));
	CHECK(!ibv_qp_to_qp_ex(qp));
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(ibv_modify_qp(qp, &reset_to_rts, IBV_QP_STATE) == EINVAL && qp->state == IBV_QPS_RESET);
	CHECK(ibv_modify_qp(qp, &reset_to_rts, 1 << 30) == EINVAL);
	CHECK(ibv_post_send(qp, &send, &bad_send) == EINVAL && bad_send == &send);
	CHECK(ibv_post_recv(qp, &receive, &bad_receive) == EINVAL && bad_receive == &receive);
}

/* A full queue rejects a work request at once. The requests before the rejected one in the list stay posted. */
static void full_queues(void)
{
	struct ibv_cq *own_cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *a = create_qp(own_cq, NULL, IBV_QPT_RC, 3), *b = create_qp(own_cq, NULL, IBV_QPT_RC, 3);
	struct ibv_sge sges[3] = { { (uintptr_t)memory, 8, mr->lkey }, { (uintptr_t)memory, 8, mr->lkey } };
	struct ibv_send_wr sends[5], *bad_send;
	struct ibv_recv_wr receives[5], *bad_receive;
	struct ibv_qp_attr attr;
	struct ibv_qp_init_attr init;
	char text[65] = "";

	CHECK(own_cq);
	sges[2] = sges[1];
	connect_pair(a, b);
	for (int request = 0; request < 5; request++) {
		sends[request] = (struct ibv_send_wr){
			.wr_id = request,
			.next = request < 4 ? &sends[request + 1] : NULL,
			.sg_list = sges,
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_SIGNALED,
		};
		receives[request] = (struct ibv_recv_wr){
			.wr_id = request,
			.next = request < 4 ? &receives[request + 1] : NULL,
			.sg_list = sges,
			.num_sge = 1,
		};
	}
	CHECK(ibv_post_recv(b, receives, &bad_receive) == ENOMEM && bad_receive == &receives[3]);
	/* The other end has posted no receives, so the sends stay in the queue. */
	CHECK(ibv_post_send(b, sends, &bad_send) == ENOMEM && bad_send == &sends[3]);
	/* `bad_send` is the first wrong request. The requests before the wrong one are posted. */
	sends[1].num_sge = 3;
	CHECK(ibv_post_send(a, sends, &bad_send) == EINVAL && bad_send == &sends[1]);
	CHECK(next_completion(own_cq).wr_id == 0 && next_completion(own_cq).wr_id == 0);
	receives[0].num_sge = 3;
	CHECK(ibv_post_recv(a, receives, &bad_receive) == EINVAL && bad_receive == &receives[0]);
	receives[0].num_sge = -1;
	CHECK(ibv_post_recv(a, receives, &bad_receive) == EINVAL && bad_receive == &receives[0]);
	sends[1].next = NULL;
	sends[1].num_sge = 1;
	sends[1].send_flags = IBV_SEND_INLINE;
	sges[0] = (struct ibv_sge){ (uintptr_t)text, 65, 0 };
	CHECK(ibv_post_send(a, &sends[1], &bad_send) == EINVAL && bad_send == &sends[1]);
	sends[1].opcode = 77;
	sges[0].length = 1;
	CHECK(ibv_post_send(a, &sends[1], &bad_send) == EINVAL && bad_send == &sends[1]);
	sends[1].opcode = IBV_WR_RDMA_READ;
	CHECK(ibv_post_send(a, &sends[1], &bad_send) == EINVAL && bad_send == &sends[1]);
	/* The rejected requests did not change the queue pair. */
	CHECK(ibv_query_qp(a, &attr, IBV_QP_STATE, &init) == 0 && attr.qp_state == IBV_QPS_RTS);
	CHECK(init.cap.max_send_wr >= 3 && init.cap.max_send_sge >= 2 && init.cap.max_inline_data >= 64);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_cq(own_cq) == 0);
}

/* Objects in use cannot be destroyed, and objects of another context or protection domain are rejected. */
static void belongings(void)
{
	struct ibv_srq_init_attr shared = { .attr = { .max_wr = 4, .max_sge = 1 } };
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_context *other = ibv_open_device(devices[0]);
	struct ibv_srq_attr limit = { .srq_limit = 5 };
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_pd *other_pd, *own_pd = ibv_alloc_pd(context);
	struct ibv_srq *srq;
	struct ibv_cq *others;
	struct ibv_qp *user;
	struct ibv_ah *ah;
	struct ibv_mw *mw;

	CHECK(other && own_pd && (other_pd = ibv_alloc_pd(other)));
	CHECK((others = ibv_create_cq(other, 4, NULL, NULL, 0)));
	CHECK((srq = ibv_create_srq(own_pd, &shared)));
	CHECK(ibv_dealloc_pd(own_pd) == EBUSY);
	CHECK(ibv_modify_srq(srq, &limit, IBV_SRQ_LIMIT) == EINVAL);
	init.send_cq = init.recv_cq = others;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	init.send_cq = init.recv_cq = cq;
	CHECK(!ibv_create_qp(NULL, &init) && errno == EINVAL);
	CHECK(!ibv_create_qp(pd, NULL) && errno == EINVAL);
	init.srq = srq;
	CHECK(!ibv_create_qp(pd, &init) && errno == EINVAL);
	CHECK((user = ibv_create_qp(own_pd, &init)));
	CHECK(ibv_destroy_srq(srq) == EBUSY);
	CHECK(ibv_destroy_qp(user) == 0 && ibv_destroy_srq(srq) == 0);
	CHECK((ah = ibv_create_ah(own_pd, &address)));
	CHECK(ibv_dealloc_pd(own_pd) == EBUSY);
	CHECK(ibv_destroy_ah(ah) == 0);
	CHECK((mw = ibv_alloc_mw(own_pd, IBV_MW_TYPE_2)));
	CHECK(ibv_dealloc_pd(own_pd) == EBUSY);
	CHECK(ibv_dealloc_mw(mw) == 0);
	CHECK(ibv_dealloc_pd(own_pd) == 0);
	CHECK(ibv_destroy_cq(others) == 0 && ibv_dealloc_pd(other_pd) == 0 && ibv_close_device(other) == 0);
}

/* The preloaded library must reject unsupported calls. Such a call must not reach the system's library, which would
 * treat the objects as its own. */
static void not_offered(void)
{
	struct ibv_ah_attr address = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid } };
	struct ibv_ece ece = { 0 };
	uint8_t mac[6];
	uint16_t vid;

	CHECK(!ibv_import_device(context->cmd_fd) && errno == EOPNOTSUPP);
	CHECK(!ibv_import_pd(context, pd->handle) && errno == EOPNOTSUPP);
	CHECK(!ibv_import_mr(pd, mr->handle) && errno == EOPNOTSUPP);
	CHECK(!ibv_import_dm(context, 0) && errno == EOPNOTSUPP);
	/* The errors are those of libibverbs for a driver without such enhancements. */
	CHECK(ibv_query_ece(qp, &ece) == EOPNOTSUPP && ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	ece.vendor_id = 0x2c9;
	CHECK(ibv_set_ece(qp, &ece) == EOPNOTSUPP);
	CHECK(ibv_resolve_eth_l2_from_gid(context, &address, mac, &vid) == EOPNOTSUPP);
	CHECK(ibv_query_qp_data_in_order(qp, IBV_WR_SEND, 0) == 0);
	CHECK(!ibv_open_xrcd(context, &(struct ibv_xrcd_init_attr){ 0 }) && errno == EOPNOTSUPP);
	CHECK(ibv_fork_init() == 0 && ibv_is_fork_initialized() == IBV_FORK_UNNEEDED);
}

/* An inherited device does not work in a child. A newly opened device works. */
static void child(void)
{
	struct ibv_send_wr send = { 0 }, *bad = NULL;
	struct ibv_context *own;
	union ibv_gid new;
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(ibv_post_send(qp, &send, &bad) == EIO);
	CHECK(ibv_dereg_mr(mr) == EIO);
	CHECK(!ibv_alloc_pd(context) && errno == EIO);
	CHECK(ibv_close_device(context) == 0);
	CHECK((own = ibv_open_device(devices[0])));
	CHECK(ibv_query_gid(own, 1, 0, &new) == 0);
	CHECK(new.global.interface_id != gid.global.interface_id);
	CHECK(ibv_close_device(own) == 0);
	exit(0);
}

int main(void)
{
	struct ibv_comp_channel *channel;
	union ibv_gid none;
	int status = -1;
	pid_t process;

	open_device();
	CHECK(ibv_query_gid(context, 2, 0, &none) == -1);
	CHECK(ibv_query_gid(context, 1, 1, &none) == -1);
	CHECK((channel = ibv_create_comp_channel(context)));
	regions();
	queues(channel);
	full_queues();
	belongings();
	not_offered();

	process = fork();
	if (process == 0)
		child();
	CHECK(waitpid(process, &status, 0) == process && status == 0);

	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	close_device();
	return 0;
}
