/* Ends of UCX connections, by a killed peer and by a close during traffic. A slow receiver must not end a connection.
 * The environment should set short timeouts, because the defaults of UCX are half a minute or more. */
#include "ucx.h"

#define SIZE 100000
#define WINDOW 16

/* Time limit of each step in seconds. The limit is longer than the configured timeouts. */
#define BOUND_S 20

static struct line line;
static ucs_status_t failure;

static void on_failure(void *argument, ucp_ep_h ep, ucs_status_t status)
{
	(void)argument, (void)ep;
	failure = status;
}

static void open_line(void)
{
	failure = UCS_OK;
	line.worker = create_worker();
	line.ep = connect_to(line.worker, on_failure, NULL);
}

static void close_by_force(void)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };

	/* A failed endpoint needs no further work. */
	outcome_of(line.worker, ucp_ep_close_nbx(line.ep, &param));
}

struct traffic {
	ucs_status_ptr_t sends[WINDOW], receives[WINDOW];
	char *from, *to[WINDOW];
	uint64_t sent, received;
};

static struct traffic prepare(void)
{
	struct traffic own = { 0 };

	CHECK((own.from = malloc(SIZE)));
	fill(own.from, SIZE, 7);
	for (int i = 0; i < WINDOW; i++)
		CHECK((own.to[i] = malloc(SIZE)));
	return own;
}

static void discard(struct traffic *own)
{
	free(own->from);
	for (int i = 0; i < WINDOW; i++)
		free(own->to[i]);
}

/* Returns whether the request has ended, and stores its outcome. */
static int reap(ucs_status_ptr_t *request, ucs_status_t *outcome)
{
	if (UCS_PTR_IS_PTR(*request)) {
		*outcome = ucp_request_check_status(*request);
		if (*outcome == UCS_INPROGRESS)
			return 0;
		ucp_request_free(*request);
	} else {
		*outcome = UCS_PTR_STATUS(*request);
	}
	*request = NULL;
	return 1;
}

/* Keeps the windows full. `sends` is false for a side that only receives. */
static void drive(struct traffic *own, int sends, int receives)
{
	/* Short messages, and sizes for which UCX uses a rendezvous. */
	static const size_t SIZES[] = { 8, 3000, SIZE };
	ucp_request_param_t none = { 0 };
	ucs_status_t outcome;

	for (int i = 0; i < WINDOW; i++) {
		if (sends && reap(&own->sends[i], &outcome) && failure == UCS_OK) {
			own->sends[i] = ucp_tag_send_nbx(line.ep, own->from, SIZES[own->sent % 3], 1, &none);
			own->sent++;
		}
		if (receives && reap(&own->receives[i], &outcome)) {
			if (outcome == UCS_OK && own->received > WINDOW)
				CHECK(memcmp(own->to[i], own->from, 8) == 0);
			own->receives[i] = ucp_tag_recv_nbx(line.worker, own->to[i], SIZE, 1, ~0ull, &none);
			own->received++;
		}
	}
	if (ucp_worker_progress(line.worker) == 0)
		sched_yield();
}

static void cancel(struct traffic *own)
{
	for (int i = 0; i < WINDOW; i++) {
		if (UCS_PTR_IS_PTR(own->receives[i])) {
			ucp_request_cancel(line.worker, own->receives[i]);
			outcome_of(line.worker, own->receives[i]);
		}
		own->receives[i] = NULL;
	}
}

/* Waits until all sends have ended, with success or an error. */
static void end_sends(struct traffic *own)
{
	for (int i = 0; i < WINDOW; i++) {
		outcome_of(line.worker, own->sends[i]);
		own->sends[i] = NULL;
	}
}

/* Drives the worker until both ends have received `messages` messages. An end that has received them continues, because
 * it has to send to the other end. */
static void drive_until_both(struct traffic *own, uint64_t messages)
{
	double since = now();
	int is_done = 0;
	char word = 0;

	for (;;) {
		if (!is_done && own->received >= messages) {
			all_of(line.worker, 0, &word, 1);
			is_done = 1;
		}
		if (is_done && recv(beside, &word, 1, MSG_DONTWAIT) == 1)
			return;
		drive(own, 1, 1);
		CHECK(now() - since < BOUND_S);
	}
}

/* Kills the child during traffic. The parent must get an error in bounded time, and can continue. */
static void killed(int parent_sends)
{
	struct traffic own;
	double since;
	int status;

	two_processes();
	open_context(UCP_FEATURE_TAG);
	own = prepare();
	open_line();
	if (rank == 1)
		for (;;)
			drive(&own, 1, 1);
	while (own.received < 4 * WINDOW)
		drive(&own, 1, 1);
	CHECK(kill(child, SIGKILL) == 0 && waitpid(child, &status, 0) == child && WIFSIGNALED(status));
	since = now();
	while (failure == UCS_OK) {
		drive(&own, parent_sends, 1);
		CHECK(now() - since < BOUND_S);
	}
	printf("killed: %s after %.1f s\n", ucs_status_string(failure), now() - since);
	CHECK(UCS_STATUS_IS_ERR(failure));
	end_sends(&own);
	cancel(&own);
	close_by_force();
	CHECK(now() - since < BOUND_S);
	ucp_worker_destroy(line.worker);
	discard(&own);
	ucp_cleanup(context);
	close(beside);
}

/* Closes endpoints by force while both processes send, and creates new ones in the same context. */
static void under_traffic(void)
{
	struct traffic own;

	two_processes();
	open_context(UCP_FEATURE_TAG);
	for (int round = 0; round < 12; round++) {
		double since = now();

		own = prepare();
		open_line();
		drive_until_both(&own, 2 * WINDOW + 40 * (round % 3));
		/* One endpoint closes before the other one. The last message of the first endpoint may find no receiver. */
		for (int turn = 0; turn < 200; turn++)
			drive(&own, 1, 1);
		close_by_force();
		end_sends(&own);
		cancel(&own);
		meet(line.worker);
		ucp_worker_destroy(line.worker);
		discard(&own);
		CHECK(now() - since < BOUND_S);
	}
	/* An endpoint without traffic closes normally. */
	open_line();
	flush(&line);
	close_line(&line);
	ucp_cleanup(context);
	one_process();
	printf("closed under traffic\n");
}

#define BURST 6000

/* The receiver sleeps, so thousands of messages get RNR NAKs and are retransmitted until it wakes up. */
static void slow_receiver(void)
{
	ucp_request_param_t none = { 0 };
	char from[BURST / 100], to[BURST / 100];

	/* Turn the flow control of UCX off, because it would prevent RNR NAKs. */
	setenv("UCX_RC_VERBS_FC_ENABLE", "n", 1);
	setenv("UCX_RC_VERBS_RX_QUEUE_LEN", "64", 1);
	two_processes();
	open_context(UCP_FEATURE_TAG);
	line.worker = create_worker();
	line.ep = connect_to(line.worker, NULL, NULL);
	flush(&line);
	meet(line.worker);
	if (rank == 0) {
		for (int i = 0; i < BURST; i++) {
			memset(from, i, sizeof(from));
			CHECK_UCS(outcome_of(line.worker, ucp_tag_send_nbx(line.ep, from, sizeof(from), i, &none)));
		}
	} else {
		for (int i = 0; i < BURST; i++) {
			if (i % 1500 == 0)
				usleep(50000);
			CHECK_UCS(outcome_of(line.worker, ucp_tag_recv_nbx(line.worker, to, sizeof(to), i, ~0ull, &none)));
			for (size_t at = 0; at < sizeof(to); at++)
				CHECK(to[at] == (char)i);
		}
	}
	close_line(&line);
	ucp_cleanup(context);
	one_process();
	printf("slow receiver\n");
}

int main(int count, char **arguments)
{
	(void)count, (void)arguments;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* Each test cleans UCX up, so the next test starts without state of UCX in the parent and its child. */
	killed(1);
	killed(0);
	under_traffic();
	slow_receiver();
	return 0;
}
