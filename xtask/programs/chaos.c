/* One end of a pair of processes that exchange checked messages while one of the processes is disturbed. Standard input
 * is a socket to the other end, which carries the set-up of connections and a final goodbye. Arguments have the form
 * KEY=VALUE, and `struct plan` has the keys.
 *
 * The exit status shows how the process has ended. 0: all messages arrived. 1: wrong data or a failed check. 3: a
 * completion with an error. 4: a rejected call, which the act may cause. 7: the act has ended the process. */
#include "chaos.h"

/* ---- connections ---- */

static void prepare(struct lane *lane)
{
	struct room *room = mmap(NULL, sizeof(*room), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	CHECK(room != MAP_FAILED);
	for (uint64_t at = 0; at < 64; at++)
		room->pattern[at] = at * 0x9e3779b97f4a7c15;
	lane->room = room;
	CHECK((lane->mr = ibv_reg_mr(pd, room, sizeof(*room), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				     IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)));
	if (lane->sleeps)
		CHECK((lane->channel = ibv_create_comp_channel(context)));
	CHECK((lane->cq = ibv_create_cq(context, 8 * WINDOW, NULL, lane->channel, 0)));
}

static void receive_into(struct lane *lane, uint64_t slot)
{
	int refused = post_receive(lane->qp, NULL, slot, lane->mr, &lane->room->in[slot], SLOT);

	CHECK(refused == 0);
}

static void send_to_other(const void *bytes, size_t length)
{
	ssize_t gone;

	while ((gone = send(LINK, bytes, length, MSG_NOSIGNAL)) == -1 && errno == EINTR)
		;
	if (gone != (ssize_t)length) {
		fprintf(stderr, "the other end ended during the set-up of connections\n");
		exit(STATUS_ENDED);
	}
}

static void receive_from_other(void *bytes, size_t length)
{
	ssize_t got;

	while ((got = recv(LINK, bytes, length, MSG_WAITALL)) == -1 && errno == EINTR)
		;
	if (got != (ssize_t)length) {
		fprintf(stderr, "the other end ended during the set-up of connections\n");
		exit(STATUS_ENDED);
	}
}

static void describe(struct lane *lane, struct end *own)
{
	*own = (struct end){ gid, lane->qp->qp_num, lane->mr->rkey, (uintptr_t)lane->room };
}

static void connect_by_hand(void)
{
	struct end own;

	stage(0);
	open_device();
	stage(1);
	for (int at = 0; at < LANES; at++)
		prepare(&lanes[at]);
	stage(2);
	for (int at = 0; at < LANES; at++) {
		lanes[at].qp = create_qp(lanes[at].cq, NULL, IBV_QPT_RC, 4 * WINDOW);
		to_init(lanes[at].qp);
		for (uint64_t slot = 0; slot < WINDOW; slot++)
			receive_into(&lanes[at], slot);
		describe(&lanes[at], &own);
		send_to_other(&own, sizeof(own));
	}
	stage(3);
	for (int at = 0; at < LANES; at++)
		receive_from_other(&lanes[at].other, sizeof(own));
	gid = lanes[0].other.gid;
	ack_timeout = plan.timeout;
	for (int at = 0; at < LANES; at++) {
		to_rtr(lanes[at].qp, lanes[at].other.qpn);
		to_rts(lanes[at].qp);
	}
	stage(4);
}

/* Returns the id of the next event, which must be of the kind `kind`. Any other event means that the other end is
 * gone. */
static struct rdma_cm_id *await(enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	enum rdma_cm_event_type found;

	while (rdma_get_cm_event(events, &event))
		CHECK(errno == EINTR);
	id = event->id;
	found = event->event;
	rdma_ack_cm_event(event);
	if (found != kind) {
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(found), rdma_event_str(kind));
		exit(STATUS_ENDED);
	}
	return id;
}

static void prepare_id(struct lane *lane, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr init = {
		.cap = { 4 * WINDOW, 4 * WINDOW, 2, 2, 64 },
		.qp_type = IBV_QPT_RC,
	};

	if (!context) {
		context = id->verbs;
		CHECK((pd = ibv_alloc_pd(context)));
	}
	CHECK(id->verbs == context);
	lane->id = id;
	prepare(lane);
	init.send_cq = init.recv_cq = lane->cq;
	CHECK(rdma_create_qp(id, pd, &init) == 0);
	lane->qp = id->qp;
	for (uint64_t slot = 0; slot < WINDOW; slot++)
		receive_into(lane, slot);
}

static void connect_by_cm(void)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(plan.port) };
	struct rdma_conn_param how = { .responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_id *listener = NULL;
	struct end own;
	char ready = 'r';

	address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	stage(0);
	CHECK((events = rdma_create_event_channel()));
	stage(1);
	if (plan.server) {
		CHECK(rdma_create_id(events, &listener, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_bind_addr(listener, (struct sockaddr *)&address) == 0 && rdma_listen(listener, LANES) == 0);
		send_to_other(&ready, 1);
	} else {
		receive_from_other(&ready, 1);
	}
	for (int at = 0; at < LANES; at++) {
		struct rdma_cm_id *id;

		if (plan.server) {
			struct pollfd waits[] = { { events->fd, POLLIN, 0 }, { LINK, 0, 0 } };

			/* Also watch the link, because a client that ends before it connects only closes its link. */
			while (poll(waits, 2, -1) == -1 && errno == EINTR)
				;
			if (!(waits[0].revents & POLLIN))
				exit(STATUS_ENDED);
			id = await(RDMA_CM_EVENT_CONNECT_REQUEST);
			prepare_id(&lanes[at], id);
			stage(2);
			CHECK(rdma_accept(id, &how) == 0);
		} else {
			CHECK(rdma_create_id(events, &id, NULL, RDMA_PS_TCP) == 0);
			CHECK(rdma_resolve_addr(id, NULL, (struct sockaddr *)&address, 5000) == 0);
			await(RDMA_CM_EVENT_ADDR_RESOLVED);
			CHECK(rdma_resolve_route(id, 5000) == 0);
			await(RDMA_CM_EVENT_ROUTE_RESOLVED);
			prepare_id(&lanes[at], id);
			stage(2);
			CHECK(rdma_connect(id, &how) == 0);
		}
		await(RDMA_CM_EVENT_ESTABLISHED);
		describe(&lanes[at], &own);
		send_to_other(&own, sizeof(own));
		receive_from_other(&lanes[at].other, sizeof(own));
		stage(3);
	}
	if (listener)
		CHECK(rdma_destroy_id(listener) == 0);
	stage(4);
}

/* ---- traffic ---- */

enum { SENT = 100, READ = 200, ADDED = 300, PROBED = 400 };

/* Posts a work request. A queue pair in the error state accepts the work request and flushes it. */
static void post_one(struct lane *lane, enum ibv_wr_opcode opcode, uint64_t id, void *local, uint32_t length, uint64_t remote)
{
	struct ibv_sge sge = { (uintptr_t)local, length, lane->mr->lkey };
	struct ibv_send_wr wr = { .wr_id = id, .sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED };
	struct ibv_send_wr *bad;

	if (opcode == IBV_WR_RDMA_READ) {
		wr.wr.rdma.remote_addr = remote;
		wr.wr.rdma.rkey = lane->other.rkey;
	}
	if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = remote;
		wr.wr.atomic.rkey = lane->other.rkey;
		wr.wr.atomic.compare_add = 1;
	}
	CHECK(ibv_post_send(lane->qp, &wr, &bad) == 0);
}

static void send_one(struct lane *lane, int last)
{
	struct message *message = &lane->room->out[lane->sent % WINDOW];
	uint32_t length = 32 + lane->sent * 977 % (SLOT - 32);

	if (!lane->gone) {
		*message = (struct message){ .number = lane->sent, .lane = lane->number, .last = last, .length = length };
		for (uint32_t at = 0; at < length - 32; at++)
			message->body[at] = body_byte(message, at);
	}
	post_one(lane, IBV_WR_SEND, SENT, message, length, 0);
	lane->sent++;
}

static int check_message(struct lane *lane, const struct ibv_wc *wc)
{
	const struct message *message = &lane->room->in[wc->wr_id];

	RIGHT(message->number == lane->received && message->lane == (uint64_t)lane->number);
	RIGHT(message->length == wc->byte_len && wc->byte_len == 32 + lane->received * 977 % (SLOT - 32));
	for (uint32_t at = 0; at < wc->byte_len - 32; at++)
		RIGHT(message->body[at] == body_byte(message, at));
	lane->received++;
	return message->last;
}

/* Sleeps until a completion, a signal or a cancellation. Returns 0 if the call fails for another reason. */
static int sleep_for_completion(struct lane *lane)
{
	struct ibv_cq *cq;
	void *cq_context;

	if (ibv_get_cq_event(lane->channel, &cq, &cq_context) == 0) {
		ibv_ack_cq_events(cq, 1);
		return 1;
	}
	return errno == EINTR;
}

/* Handles a completion. Returns true if the completion is the receive of the other end's last message. */
static int take(struct lane *lane, const struct ibv_wc *wc, int *is_reading, int *is_probing)
{
	int last = 0;

	if (wc->wr_id == SENT)
		lane->acknowledged++;
	else if (wc->wr_id == PROBED)
		*is_probing = 0;
	else if (wc->wr_id == READ && !lane->gone)
		RIGHT(memcmp(lane->room->read, lane->room->pattern, sizeof(lane->room->read)) == 0);
	else if (wc->wr_id == ADDED) {
		RIGHT(lane->gone || lane->room->old == lane->added);
		lane->added++;
		*is_reading = 0;
	} else if (wc->wr_id < WINDOW && !lane->gone) {
		last = check_message(lane, wc);
		receive_into(lane, wc->wr_id);
	}
	return last;
}

static void *run_lane(void *argument)
{
	struct lane *lane = argument;
	long end = now_us() + plan.us;
	int has_last = 0, got_last = 0, is_reading = 0, is_probing = 0, is_armed = 0;
	stack_t stack = { .ss_sp = is("onstack") ? malloc(SIGSTKSZ) : NULL, .ss_size = SIGSTKSZ };

	if (stack.ss_sp)
		CHECK(sigaltstack(&stack, NULL) == 0);
	while (!has_last || !got_last || is_reading || is_probing || lane->acknowledged < lane->sent) {
		struct ibv_wc wc[4];
		int found;

		if (lane->is_to_unmap && !lane->gone) {
			lane->gone = 1;
			CHECK(munmap(lane->room, sizeof(*lane->room)) == 0);
		}
		while (!has_last && lane->sent - lane->acknowledged < WINDOW) {
			has_last = now_us() >= end && !is_reading && !lane->gone;
			send_one(lane, has_last);
			if (!has_last && !is_reading && lane->sent % 16 == 0) {
				struct room *other = (struct room *)(uintptr_t)lane->other.room;

				post_one(lane, IBV_WR_RDMA_READ, READ, lane->room->read, sizeof(lane->room->read),
					 (uintptr_t)other->pattern);
				post_one(lane, IBV_WR_ATOMIC_FETCH_AND_ADD, ADDED, &lane->room->old, 8,
					 (uintptr_t)&other->word);
				is_reading = 1;
			}
		}
		/* Verbs do not report a dead peer to an end that only receives. Probe the peer with a request. */
		if (has_last && !got_last && !is_probing) {
			struct room *other = (struct room *)(uintptr_t)lane->other.room;

			post_one(lane, IBV_WR_RDMA_READ, PROBED, lane->room->read, 8, (uintptr_t)other->pattern);
			is_probing = 1;
		}
		found = ibv_poll_cq(lane->cq, 4, wc);
		if (found < 0) {
			lane->status = IBV_WC_GENERAL_ERR;
			return NULL;
		}
		for (int at = 0; at < found; at++) {
			if (wc[at].status != IBV_WC_SUCCESS) {
				lane->status = wc[at].status;
				return NULL;
			}
			got_last |= take(lane, &wc[at], &is_reading, &is_probing);
		}
		if (found > 0)
			continue;
		if (!lane->sleeps) {
			pthread_testcancel();
			sched_yield();
		} else if (!is_armed) {
			CHECK(ibv_req_notify_cq(lane->cq, 0) == 0); /* the next iteration polls once more before it sleeps */
			is_armed = 1;
		} else {
			is_armed = 0;
			if (!sleep_for_completion(lane)) {
				lane->status = IBV_WC_GENERAL_ERR;
				return NULL;
			}
		}
	}
	return NULL;
}

static void start_lanes(void)
{
	pthread_attr_t attributes;

	CHECK(pthread_attr_init(&attributes) == 0);
	if (plan.stack)
		CHECK(pthread_attr_setstacksize(&attributes, PTHREAD_STACK_MIN + plan.stack) == 0);
	for (int at = 0; at < LANES; at++)
		CHECK(pthread_create(&lanes[at].thread, &attributes, run_lane, &lanes[at]) == 0);
}

/* Joins the lanes, and returns the exit status of the process. */
static int finish_lanes(void)
{
	int status = 0;

	for (int at = 0; at < LANES; at++) {
		struct lane *lane = &lanes[at];
		void *ended;
		const char *how;

		CHECK(pthread_join(lane->thread, &ended) == 0);
		how = ended == PTHREAD_CANCELED ? "cancelled" : ibv_wc_status_str(lane->status);
		printf("lane %d: %lu sent, %lu received: %s\n", at, lane->sent, lane->received, how);
		if (ended != PTHREAD_CANCELED && lane->status == IBV_WC_SUCCESS)
			continue;
		status = STATUS_ENDED;
		/* No thread posts receives any more. The error state of the queue pair ends the traffic of the other end. */
		if (ended == PTHREAD_CANCELED)
			to_error(lane->qp);
	}
	is_traffic_over = 1;
	return status;
}

/* Exchanges a goodbye with the other end. Afterwards, neither end accesses the memory of the other end. */
static void say_goodbye(void)
{
	char byte = 'g';

	while (send(LINK, &byte, 1, MSG_NOSIGNAL) == -1 && errno == EINTR)
		;
	while (recv(LINK, &byte, 1, 0) == -1 && errno == EINTR)
		;
}

static void close_all(void)
{
	for (int at = 0; at < LANES; at++) {
		struct lane *lane = &lanes[at];

		if (lane->id) {
			rdma_disconnect(lane->id);
			rdma_destroy_qp(lane->id);
		} else {
			CHECK(ibv_destroy_qp(lane->qp) == 0);
		}
		CHECK(ibv_destroy_cq(lane->cq) == 0 && ibv_dereg_mr(lane->mr) == 0);
		if (lane->channel)
			CHECK(ibv_destroy_comp_channel(lane->channel) == 0);
	}
	CHECK(ibv_dealloc_pd(pd) == 0);
	stage(6);
	for (int at = 0; at < LANES; at++)
		if (lanes[at].id)
			CHECK(rdma_destroy_id(lanes[at].id) == 0);
	if (events)
		rdma_destroy_event_channel(events);
	else
		CHECK(ibv_close_device(context) == 0);
}

static void read_plan(int count, char **words)
{
	struct {
		const char *name;
		long *value;
	} numbers[] = {
		{ "seed", &plan.seed },	      { "us", &plan.us },	{ "after", &plan.after },
		{ "stage", &plan.stage },     { "timeout", &plan.timeout }, { "stack", &plan.stack },
		{ "port", &plan.port },	      { "lane", &plan.lane },	{ "server", &plan.server },
	};

	for (int at = 1; at < count; at++) {
		char *value = strchr(words[at], '=');
		size_t number = 0, known = sizeof(numbers) / sizeof(*numbers);

		CHECK(value);
		*value++ = 0;
		if (strcmp(words[at], "act") == 0)
			plan.act = value;
		else if (strcmp(words[at], "via") == 0)
			plan.via = value;
		else {
			while (number < known && strcmp(words[at], numbers[number].name) != 0)
				number++;
			CHECK(number < known);
			*numbers[number].value = atol(value);
		}
	}
	/* With these acts, calls may fail because descriptors are closed or used up. */
	if (is("close") || is("exhaust"))
		failed_status = STATUS_REFUSED;
}

int main(int count, char **words)
{
	pthread_t actor;
	int status, ends_alone;

	read_plan(count, words);
	setvbuf(stdout, NULL, _IOLBF, 0);
	if (is("new")) { /* a process that an exec has started */
		use_device_anew();
		return STATUS_ACT;
	}
	for (int at = 0; at < LANES; at++)
		lanes[at].number = at, lanes[at].sleeps = at % 2;
	if (strcmp(plan.via, "cm") == 0)
		connect_by_cm();
	else
		connect_by_hand();
	puts("connected");
	start_lanes();
	ends_alone = plan.stage == -1 && !is("none");
	if (ends_alone)
		CHECK(pthread_create(&actor, NULL, act_in_time, NULL) == 0);
	status = finish_lanes();
	if (ends_alone)
		CHECK(pthread_join(actor, NULL) == 0);
	stage(5);
	if (status == 0)
		say_goodbye();
	close_all();
	return status;
}
