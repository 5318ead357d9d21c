/* Multicast between processes. Only the members of a group receive its messages. A sender that is a member also
 * receives its own messages. */
#include <sys/wait.h>

#include "common.h"

#define MESSAGES 50
#define HEADER 40
#define LENGTH 64

static char memory[2 * MESSAGES][HEADER + LENGTH];
static union ibv_gid group;
static struct ibv_mr *mr;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;

/* Chooses a group by the id of the parent process, so that the group is unique on this machine. */
static void choose_group(pid_t number)
{
	uint32_t address = htobe32(0xef000000 | (number & 0xffffff));

	memset(&group.raw[10], 0xff, 2);
	memcpy(&group.raw[12], &address, 4);
}

static void make_objects(void)
{
	open_device();
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK((channel = ibv_create_comp_channel(context)));
	CHECK((cq = ibv_create_cq(context, 4 * MESSAGES, NULL, channel, 0)));
}

static struct ibv_qp *datagrams(void)
{
	struct ibv_qp *qp = create_qp(cq, NULL, IBV_QPT_UD, 2 * MESSAGES);

	to_init(qp);
	to_rtr(qp, 0);
	to_rts(qp);
	return qp;
}

static void expect_messages(int completions, const struct ibv_qp *sender, uint32_t from, const union ibv_gid *source)
{
	int seen[2 * MESSAGES] = { 0 };

	while (completions > 0) {
		struct ibv_wc wc = next_completion(cq);
		const char *message = memory[wc.wr_id];

		CHECK(wc.status == IBV_WC_SUCCESS);
		if (wc.opcode == IBV_WC_SEND) {
			CHECK(sender && wc.qp_num == sender->qp_num);
			continue;
		}
		CHECK(wc.byte_len == HEADER + LENGTH && wc.src_qp == from && wc.wc_flags & IBV_WC_GRH && !seen[wc.wr_id]++);
		/* The last 20 of the 40 bytes are the IPv4 header. Check its source and its destination, the group. */
		CHECK(message[20] == 0x45 && memcmp(message + 32, &source->raw[12], 4) == 0);
		CHECK(memcmp(message + 36, &group.raw[12], 4) == 0);
		for (int i = 0; i < LENGTH; i++)
			CHECK(message[HEADER + i] == (char)(message[HEADER] + i));
		completions--;
	}
}

static void send_all(struct ibv_qp *qp, struct ibv_ah *ah, int messages)
{
	for (int message = 0; message < messages; message++) {
		char bytes[LENGTH];
		struct ibv_sge sge = { (uintptr_t)bytes, LENGTH, 0 };
		struct ibv_send_wr wr = {
			.sg_list = &sge,
			.num_sge = 1,
			.opcode = IBV_WR_SEND,
			.send_flags = IBV_SEND_INLINE,
			/* A Q_Key with its highest bit set means the Q_Key of the sender's queue pair, 0x1234. */
			.wr.ud = { ah, 0xffffff, message % 2 ? 0x80000000 : 0x1234 },
		};
		struct ibv_send_wr *bad;

		for (int i = 0; i < LENGTH; i++)
			bytes[i] = message + i;
		CHECK(ibv_post_send(qp, &wr, &bad) == 0);
	}
}

struct sender {
	uint64_t qpn;
	union ibv_gid gid;
};

/* Sends messages to the group from a child. The child also receives them, since its queue pair is a member. */
static int send_from_child(int to_parent, int from_parent)
{
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = group, .hop_limit = 1 } };
	struct sender own;
	struct ibv_qp *qp;
	struct ibv_ah *ah;
	char word;

	make_objects();
	CHECK((ah = ibv_create_ah(pd, &attr)));
	qp = datagrams();
	own = (struct sender){ qp->qp_num, gid };
	CHECK(ibv_attach_mcast(qp, &group, 0) == 0);
	for (int message = 0; message < MESSAGES; message++)
		CHECK(post_receive(qp, NULL, message, mr, memory[message], HEADER + LENGTH) == 0);
	CHECK(write(to_parent, &own, sizeof(own)) == sizeof(own));
	CHECK(read(from_parent, &word, 1) == 1);
	send_all(qp, ah, MESSAGES);
	expect_messages(MESSAGES, qp, qp->qp_num, &gid);
	CHECK(write(to_parent, &word, 1) == 1);
	/* The queue pairs of the parent are detached now. */
	CHECK(read(from_parent, &word, 1) == 1);
	for (int message = 0; message < MESSAGES; message++)
		CHECK(post_receive(qp, NULL, message, mr, memory[message], HEADER + LENGTH) == 0);
	send_all(qp, ah, MESSAGES);
	expect_messages(MESSAGES, qp, qp->qp_num, &gid);
	CHECK(write(to_parent, &word, 1) == 1);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 && ibv_dereg_mr(mr) == 0);
	close_device();
	return 0;
}

int main(void)
{
	int from_child[2], to_child[2], status = -1;
	struct ibv_qp *a, *b, *apart, *connected;
	union ibv_gid unicast;
	struct sender sender;
	struct ibv_cq *named;
	void *cq_context;
	struct ibv_wc wc;
	pid_t process;
	char word = 0;

	choose_group(getpid());
	CHECK(pipe(from_child) == 0 && pipe(to_child) == 0);
	process = fork();
	if (process == 0)
		exit(send_from_child(from_child[1], to_child[0]));

	make_objects();
	unicast = gid;
	a = datagrams();
	b = datagrams();
	apart = datagrams();
	connected = create_qp(cq, NULL, IBV_QPT_RC, 4);
	CHECK(ibv_attach_mcast(connected, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(a, &unicast, 0) == EINVAL);
	CHECK(ibv_attach_mcast(a, NULL, 0) == EINVAL);
	CHECK(ibv_detach_mcast(a, &group, 0) == EINVAL);
	CHECK(ibv_attach_mcast(a, &group, 0) == 0 && ibv_attach_mcast(b, &group, 0) == 0);
	CHECK(ibv_attach_mcast(b, &group, 0) == 0); /* attaching again has no effect */
	for (int message = 0; message < MESSAGES; message++) {
		CHECK(post_receive(a, NULL, message, mr, memory[message], HEADER + LENGTH) == 0);
		CHECK(post_receive(b, NULL, MESSAGES + message, mr, memory[MESSAGES + message], HEADER + LENGTH) == 0);
		CHECK(post_receive(apart, NULL, 0, mr, memory[0], HEADER + LENGTH) == 0);
	}
	CHECK(read(from_child[0], &sender, sizeof(sender)) == sizeof(sender));
	CHECK(ibv_req_notify_cq(cq, 0) == 0);
	CHECK(write(to_child[1], &word, 1) == 1);
	/* The event arrives while no thread polls. */
	CHECK(ibv_get_cq_event(channel, &named, &cq_context) == 0 && named == cq);
	ibv_ack_cq_events(cq, 1);
	expect_messages(2 * MESSAGES, NULL, sender.qpn, &sender.gid);
	CHECK(read(from_child[0], &word, 1) == 1);

	CHECK(post_receive(a, NULL, 0, mr, memory[0], HEADER + LENGTH) == 0);
	CHECK(post_receive(b, NULL, 1, mr, memory[1], HEADER + LENGTH) == 0);
	CHECK(ibv_detach_mcast(a, &group, 0) == 0 && ibv_destroy_qp(b) == 0);
	CHECK(write(to_child[1], &word, 1) == 1);
	CHECK(read(from_child[0], &word, 1) == 1);
	CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
	CHECK(waitpid(process, &status, 0) == process && status == 0);
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(apart) == 0 && ibv_destroy_qp(connected) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0 && ibv_dereg_mr(mr) == 0);
	close_device();
	return 0;
}
