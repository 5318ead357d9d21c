/* UCX over two devices, of which one loses its port in the middle of a transfer. The endpoints then fail, both
 * processes open a new context, which uses the other device, and the transfer continues. All bytes are compared.
 * The port of the parent's first device must go down after the program has printed `ready for the fault`. */
#include "ucx.h"

#define SIZE ((1 << 20) + 3)
#define MESSAGES_BEFORE 20
#define MESSAGES_AFTER 40

/* Time limit of each step in seconds. The limit is longer than the configured timeouts. */
#define BOUND_S 60

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
	open_context(UCP_FEATURE_TAG);
	line.worker = create_worker();
	line.ep = connect_to(line.worker, on_failure, NULL);
}

static void close_by_force(void)
{
	ucp_request_param_t param = { .op_attr_mask = UCP_OP_ATTR_FIELD_FLAGS, .flags = UCP_EP_CLOSE_FLAG_FORCE };

	outcome_of(line.worker, ucp_ep_close_nbx(line.ep, &param));
	ucp_worker_destroy(line.worker);
	ucp_cleanup(context);
}

/* Sends the message of this number, or receives and compares it. Returns whether the message is complete. */
static int transfer(char *memory, uint64_t number)
{
	ucp_request_param_t none = { 0 };
	ucs_status_ptr_t request;
	ucs_status_t outcome;
	double since = now();

	if (rank == 0)
		fill(memory, SIZE, number);
	else
		memset(memory, 0, SIZE);
	request = rank == 0 ? ucp_tag_send_nbx(line.ep, memory, SIZE, number, &none) :
		  ucp_tag_recv_nbx(line.worker, memory, SIZE, number, ~0ull, &none);
	while (UCS_PTR_IS_PTR(request) && ucp_request_check_status(request) == UCS_INPROGRESS && failure == UCS_OK) {
		if (ucp_worker_progress(line.worker) == 0)
			sched_yield();
		CHECK(now() - since < BOUND_S);
	}
	/* No message fails a receive. So a receiver with a failed endpoint cancels it. */
	if (UCS_PTR_IS_PTR(request) && rank == 1 && ucp_request_check_status(request) == UCS_INPROGRESS)
		ucp_request_cancel(line.worker, request);
	outcome = outcome_of(line.worker, request);
	if (outcome != UCS_OK)
		return 0;
	if (rank == 1)
		expect(memory, SIZE, number);
	return 1;
}

/* Transfers messages until the number `end`, or until the endpoint has failed. */
static uint64_t transfer_until(char *memory, uint64_t from, uint64_t end)
{
	while (from < end && failure == UCS_OK && transfer(memory, from))
		from++;
	return from;
}

int main(void)
{
	char *memory = malloc(SIZE);
	uint64_t own, other, next, end;

	CHECK(memory);
	two_processes();
	open_line();
	own = transfer_until(memory, 0, MESSAGES_BEFORE);
	CHECK(own == MESSAGES_BEFORE);
	if (rank == 0) {
		puts("ready for the fault");
		fflush(stdout);
	}
	own = transfer_until(memory, own, ~0ull);
	printf("rank %d: %s after %llu messages\n", rank, ucs_status_string(failure), (unsigned long long)own);
	CHECK(UCS_STATUS_IS_ERR(failure));
	close_by_force();

	/* The receiver knows which messages have arrived. */
	exchange(NULL, &own, &other, sizeof(own));
	next = rank == 0 ? other : own;
	end = next + MESSAGES_AFTER;
	open_line();
	CHECK(transfer_until(memory, next, end) == end);
	close_line(&line);
	ucp_cleanup(context);
	free(memory);
	one_process();
	printf("all bytes of %llu messages are right\n", (unsigned long long)end);
	return 0;
}
