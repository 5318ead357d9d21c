/* How connections of UCX end: by a peer that is killed, under traffic, and not at all where the receiver is merely
 * away. The environment should make timeouts short: UCX's own are half a minute and more. */
#include "ucx.h"

#define SIZE 100000
#define WINDOW 16

/* Longer than the timeouts that this is started with allow. */
#define BOUND_S 20

static struct line line;
static ucs_status_t failure;

static void on_failure(void *told, ucp_ep_h ep, ucs_status_t status)
{
	(void)told, (void)ep;
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

/* Keeps the windows full; `sends` is false for the side that only receives. */
static void drive(struct traffic *own, int sends, int receives)
{
	/* Short ones, and those for which UCX has a rendezvous. */
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

/* All that was sent comes to an end, if only to an error. */
static void end_sends(struct traffic *own)
{
	for (int i = 0; i < WINDOW; i++) {
		outcome_of(line.worker, own->sends[i]);
		own->sends[i] = NULL;
	}
}

/* Drives the worker until both ends have received this number of messages. An end that is done continues, since it
 * sends the messages of the other. */
static void drive_until_both(struct traffic *own, uint64_t messages)
{
	double since = now();
	int has_said = 0;
	char word = 0;

	for (;;) {
		if (!has_said && own->received >= messages) {
			all_of(line.worker, 0, &word, 1);
			has_said = 1;
		}
		if (has_said && recv(beside, &word, 1, MSG_DONTWAIT) == 1)
			return;
		drive(own, 1, 1);
		CHECK(now() - since < BOUND_S);
	}
}

/* The child is killed in the midst of it: the parent gets an error within bounded time, and can go on. */
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

/* Endpoints are closed by force while both send, and made anew; the context stays. */
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
		/* One endpoint closes first, then the other. The last message of the first may find no receiver. */
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
	/* And now in peace. */
	open_line();
	flush(&line);
	close_line(&line);
	ucp_cleanup(context);
	one_process();
	printf("closed under traffic\n");
}

#define BURST 6000

/* The receiver is away: thousands of messages find no receive and come again until it is back. */
static void away(void)
{
	ucp_request_param_t none = { 0 };
	char from[BURST / 100], to[BURST / 100];

	/* UCX has flow control of its own, which is to keep that from happening. */
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
	printf("away, and back\n");
}

int main(int count, char **arguments)
{
	(void)count, (void)arguments;
	setvbuf(stdout, NULL, _IOLBF, 0);
	/* A parent keeps nothing of UCX from one of these to the next, and neither does its next child. */
	killed(1);
	killed(0);
	under_traffic();
	away();
	return 0;
}
