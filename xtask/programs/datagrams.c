/* Checks that the completion of a datagram has the address of its sender, and sends replies to this address. */
#include "common.h"

#define HEADER 40
#define LENGTH 16

/* Values of mlx5 in the service level of a datagram's completion: whether the packet had a UDP header, and whether an
 * IPv4 or an IPv6 header preceded it. */
#define OVER_UDP 8
#define OVER_IPV6 1
#define OVER_IPV4 2

static char memory[2][HEADER + LENGTH];
static struct ibv_mr *mr;

static int is_ipv4(void)
{
	static const unsigned char mapped[12] = { [10] = 0xff, [11] = 0xff };

	return memcmp(gid.raw, mapped, sizeof(mapped)) == 0;
}

static uint8_t packet_type(void)
{
	return OVER_UDP | (is_ipv4() ? OVER_IPV4 : OVER_IPV6);
}

static struct ibv_qp *datagrams(struct ibv_cq *cq)
{
	struct ibv_qp *qp = create_qp(cq, NULL, IBV_QPT_UD, 4);

	to_init(qp);
	to_rtr(qp, 0);
	to_rts(qp);
	return qp;
}

static void send_to(struct ibv_qp *from, uint32_t to, struct ibv_ah *ah)
{
	struct ibv_sge sge = { (uintptr_t)memory[1], LENGTH, mr->lkey };
	struct ibv_send_wr wr = {
		.sg_list = &sge,
		.num_sge = 1,
		.opcode = IBV_WR_SEND,
		.send_flags = IBV_SEND_SIGNALED,
		.wr.ud = { ah, to, 0x1234 },
	};
	struct ibv_send_wr *bad;

	CHECK(ibv_post_send(from, &wr, &bad) == 0);
}

static struct ibv_ah *own_address(void)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK(ah);
	return ah;
}

/* Expects the completions of a SEND and of its receive, in any order. Returns the completion of the receive. */
static struct ibv_wc expect_datagram(struct ibv_cq *cq, const struct ibv_qp *from, const struct ibv_qp *to)
{
	struct ibv_wc received = { 0 };

	for (int completion = 0; completion < 2; completion++) {
		struct ibv_wc wc = next_completion(cq);

		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK(wc.qp_num == from->qp_num && wc.sl == 0);
			continue;
		}
		CHECK(wc.opcode == IBV_WC_RECV && wc.qp_num == to->qp_num && wc.src_qp == from->qp_num);
		CHECK(wc.wc_flags & IBV_WC_GRH && wc.byte_len == HEADER + LENGTH);
		CHECK(wc.sl == packet_type());
		received = wc;
	}
	CHECK(received.byte_len);
	return received;
}

/* In a completion, the field `sl` has the packet type. So `ibv_init_ah_from_wc` must set the service level to 0. */
static void answered(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_ah *ah = own_address(), *back;
	struct ibv_qp *a = datagrams(cq), *b = datagrams(cq);
	struct ibv_ah_attr attr;
	struct ibv_wc wc;

	CHECK(cq);
	CHECK(post_receive(b, NULL, 1, mr, memory[0], HEADER + LENGTH) == 0);
	send_to(a, b->qp_num, ah);
	wc = expect_datagram(cq, a, b);
	memset(&attr, 0xee, sizeof(attr));
	CHECK(ibv_init_ah_from_wc(context, 1, &wc, (struct ibv_grh *)memory[0], &attr) == 0);
	CHECK(attr.sl == 0 && attr.is_global == 1 && attr.grh.sgid_index == 0);
	CHECK(memcmp(&attr.grh.dgid, &gid, sizeof(gid)) == 0);
	CHECK((back = ibv_create_ah_from_wc(pd, &wc, (struct ibv_grh *)memory[0], 1)));
	CHECK(post_receive(a, NULL, 2, mr, memory[0], HEADER + LENGTH) == 0);
	send_to(b, wc.src_qp, back);
	expect_datagram(cq, b, a);
	CHECK(ibv_destroy_ah(back) == 0);
	/* Some programs fill in the attributes by hand, and copy `sl` from the completion. */
	attr.sl = wc.sl;
	CHECK((back = ibv_create_ah(pd, &attr)));
	CHECK(post_receive(a, NULL, 3, mr, memory[0], HEADER + LENGTH) == 0);
	send_to(b, wc.src_qp, back);
	expect_datagram(cq, b, a);
	/* The completion of a flushed receive has no packet type. */
	CHECK(post_receive(a, NULL, 4, mr, memory[0], HEADER + LENGTH) == 0);
	to_error(a);
	wc = next_completion(cq);
	CHECK(wc.wr_id == 4 && wc.status == IBV_WC_WR_FLUSH_ERR && wc.sl == 0);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(ibv_destroy_ah(ah) == 0 && ibv_destroy_ah(back) == 0 && ibv_destroy_cq(cq) == 0);
}

/* The extended interface, which reads completions field by field, returns the same values. */
static void field_by_field(void)
{
	struct ibv_cq_init_attr_ex init = {
		.cqe = 16,
		.wc_flags = IBV_WC_STANDARD_FLAGS,
	};
	struct ibv_poll_cq_attr attr = { 0 };
	struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
	struct ibv_ah *ah = own_address();
	struct ibv_qp *qp;
	int found;

	CHECK(cq);
	qp = datagrams(ibv_cq_ex_to_cq(cq));
	CHECK(post_receive(qp, NULL, 1, mr, memory[0], HEADER + LENGTH) == 0);
	send_to(qp, qp->qp_num, ah);
	for (int completion = 0; completion < 2; completion++) {
		while ((found = ibv_start_poll(cq, &attr)) == ENOENT)
			;
		CHECK(found == 0 && cq->status == IBV_WC_SUCCESS);
		CHECK(ibv_wc_read_sl(cq) == (ibv_wc_read_opcode(cq) == IBV_WC_RECV ? packet_type() : 0));
		ibv_end_poll(cq);
	}
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0 && ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) == 0);
}

/* Completions of connections have no packet type and no GRH. */
static void connections(void)
{
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *a, *b;

	CHECK(cq);
	a = create_qp(cq, NULL, IBV_QPT_RC, 4);
	b = create_qp(cq, NULL, IBV_QPT_RC, 4);
	connect_pair(a, b);
	CHECK(post_receive(b, NULL, 1, mr, memory[0], LENGTH) == 0);
	CHECK(post(a, IBV_WR_SEND, 2, mr, memory[1], LENGTH, NULL, NULL) == 0);
	for (int completion = 0; completion < 2; completion++) {
		struct ibv_wc wc = next_completion(cq);

		CHECK(wc.status == IBV_WC_SUCCESS && wc.sl == 0 && !(wc.wc_flags & IBV_WC_GRH));
	}
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	open_device();
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	answered();
	field_by_field();
	connections();
	CHECK(ibv_dereg_mr(mr) == 0);
	close_device();
	return 0;
}
