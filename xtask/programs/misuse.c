/* What verbs promise to a program that is wrong, and what a forked child finds: each call that is
 * refused ends with the documented errno, and everything can be cleared away afterwards. */
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define CHECK(x)                                                                    \
	do {                                                                        \
		errno = 0;                                                          \
		if (!(x)) {                                                         \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #x, errno); \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

static char memory[4096];
static struct ibv_device **devices;
static struct ibv_context *context;
static struct ibv_pd *pd;
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
	CHECK(!ibv_reg_mr(pd, memory, 4096, IBV_ACCESS_MW_BIND) && errno == EOPNOTSUPP);
	CHECK((readable = ibv_reg_mr(pd, constant, 4096, 0)));
	CHECK(ibv_dereg_mr(readable) == 0);
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK(ibv_rereg_mr(mr, 0, NULL, NULL, 0, 0) != 0);
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
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

/* An inherited device is no device; a new one is. */
static void child(const union ibv_gid *parents)
{
	struct ibv_send_wr send = { 0 }, *bad = NULL;
	struct ibv_context *own;
	union ibv_gid gid;
	struct ibv_wc wc;

	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(ibv_post_send(qp, &send, &bad) == EIO);
	CHECK(ibv_dereg_mr(mr) == EIO);
	CHECK(!ibv_alloc_pd(context) && errno == EIO);
	CHECK(ibv_close_device(context) == 0);
	CHECK((own = ibv_open_device(devices[0])));
	CHECK(ibv_query_gid(own, 1, 0, &gid) == 0);
	CHECK(gid.global.interface_id != parents->global.interface_id);
	CHECK(ibv_close_device(own) == 0);
	exit(0);
}

int main(void)
{
	struct ibv_comp_channel *channel;
	union ibv_gid gid;
	int status = -1;
	pid_t process;

	CHECK((devices = ibv_get_device_list(NULL)));
	CHECK((context = ibv_open_device(devices[0])));
	CHECK(ibv_query_gid(context, 1, 0, &gid) == 0);
	CHECK(ibv_query_gid(context, 2, 0, &gid) == -1);
	CHECK(ibv_query_gid(context, 1, 1, &gid) == -1);
	CHECK((pd = ibv_alloc_pd(context)));
	CHECK((channel = ibv_create_comp_channel(context)));
	regions();
	queues(channel);

	process = fork();
	if (process == 0)
		child(&gid);
	CHECK(waitpid(process, &status, 0) == process && status == 0);

	CHECK(ibv_destroy_qp(qp) == 0);
	CHECK(ibv_destroy_cq(cq) == 0);
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK(ibv_dealloc_pd(pd) == 0);
	CHECK(ibv_close_device(context) == 0);
	ibv_free_device_list(devices);
	return 0;
}
