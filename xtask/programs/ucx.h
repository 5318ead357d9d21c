/* Shared code of the programs over UCX. There are two processes, each with a worker and an endpoint to the other
 * process. A socket between the processes does not use UCX. UCX is used only after the fork, so each process has its
 * own device. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <ucp/api/ucp.h>
#include <unistd.h>

#define CHECK(x)                                                                    \
	do {                                                                        \
		errno = 0;                                                          \
		if (!(x)) {                                                         \
			fprintf(stderr, "%s:%d: rank %d: %s (errno %d)\n", __FILE__, __LINE__, rank, #x, errno); \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

#define CHECK_UCS(x)                                                                \
	do {                                                                        \
		ucs_status_t outcome = (x);                                         \
		if (outcome != UCS_OK) {                                            \
			fprintf(stderr, "%s:%d: rank %d: %s: %s\n", __FILE__, __LINE__, rank, #x, \
				ucs_status_string(outcome));                        \
			exit(1);                                                    \
		}                                                                   \
	} while (0)

static int rank;   /* 0 in the parent, 1 in the child */
static int beside; /* socket to the other process */
static pid_t child;
static ucp_context_h context;

/* A worker, and its endpoint to the other process's worker. */
struct line {
	ucp_worker_h worker;
	ucp_ep_h ep;
};

static inline double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return time.tv_sec + time.tv_nsec * 1e-9;
}

/* Forks a child, and connects both processes by a socket. */
static inline void two_processes(void)
{
	int ends[2];

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	child = fork();
	CHECK(child >= 0);
	rank = child == 0;
	beside = ends[rank];
	close(ends[!rank]);
}

/* Ends the child, which must succeed. */
static inline void one_process(void)
{
	int status = -1;

	if (rank == 1)
		exit(0);
	CHECK(waitpid(child, &status, 0) == child && status == 0);
	close(beside);
}

static inline void open_context(uint64_t features)
{
	ucp_params_t params = {
		.field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_MT_WORKERS_SHARED,
		.features = features,
		.mt_workers_shared = 1,
	};
	ucp_config_t *config;

	CHECK_UCS(ucp_config_read(NULL, NULL, &config));
	CHECK_UCS(ucp_init(&params, config, &context));
	ucp_config_release(config);
}

/* Reads or writes all bytes on the socket. Drives the worker meanwhile, because operations of the other process that
 * UCX emulates need this worker. */
static inline void all_of(ucp_worker_h worker, int is_read, void *bytes, size_t length)
{
	char *at = bytes;

	while (length > 0) {
		ssize_t done = is_read ? recv(beside, at, length, MSG_DONTWAIT) :
			       send(beside, at, length, MSG_DONTWAIT | MSG_NOSIGNAL);

		if (done < 0 && (errno == EAGAIN || errno == EINTR)) {
			if (!worker)
				usleep(1000);
			else if (ucp_worker_progress(worker) == 0)
				sched_yield();
			continue;
		}
		if (done <= 0) {
			fprintf(stderr, "rank %d: the other process has ended\n", rank);
			exit(1);
		}
		at += done;
		length -= done;
	}
}

/* Sends data to the other process, and receives data of the same length. */
static inline void exchange(ucp_worker_h worker, const void *own, void *other, size_t length)
{
	all_of(worker, 0, (void *)own, length);
	all_of(worker, 1, other, length);
}

/* Waits until both processes have reached this point. */
static inline void meet(ucp_worker_h worker)
{
	char word = 0;

	exchange(worker, &word, &word, 1);
}

static inline ucp_ep_h connect_to(ucp_worker_h worker, ucp_err_handler_cb_t handler, void *argument)
{
	ucp_ep_params_t params = { .field_mask = UCP_EP_PARAM_FIELD_REMOTE_ADDRESS };
	ucp_address_t *own;
	uint64_t own_length, length;
	size_t address_length;
	void *address;
	ucp_ep_h ep;

	if (handler) {
		params.field_mask |= UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
		params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
		params.err_handler.cb = handler;
		params.err_handler.arg = argument;
	}
	CHECK_UCS(ucp_worker_get_address(worker, &own, &address_length));
	own_length = address_length;
	exchange(worker, &own_length, &length, sizeof(length));
	CHECK((address = malloc(length)));
	all_of(worker, 0, own, own_length);
	all_of(worker, 1, address, length);
	params.address = address;
	CHECK_UCS(ucp_ep_create(worker, &params, &ep));
	ucp_worker_release_address(worker, own);
	free(address);
	return ep;
}

static inline ucp_worker_h create_worker(void)
{
	ucp_worker_params_t params = {
		.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
		.thread_mode = UCS_THREAD_MODE_SINGLE,
	};
	ucp_worker_h worker;

	CHECK_UCS(ucp_worker_create(context, &params, &worker));
	return worker;
}

static inline ucs_status_t outcome_of(ucp_worker_h worker, ucs_status_ptr_t request)
{
	ucs_status_t outcome;

	if (!UCS_PTR_IS_PTR(request))
		return UCS_PTR_STATUS(request);
	while ((outcome = ucp_request_check_status(request)) == UCS_INPROGRESS)
		ucp_worker_progress(worker);
	ucp_request_free(request);
	return outcome;
}

static inline void flush(struct line *line)
{
	ucp_request_param_t param = { 0 };

	CHECK_UCS(outcome_of(line->worker, ucp_ep_flush_nbx(line->ep, &param)));
}

/* Closes both endpoints. The processes meet before and after, since messages of the other process may be in flight. */
static inline void close_line(struct line *line)
{
	ucp_request_param_t param = { 0 };

	flush(line);
	meet(line->worker);
	CHECK_UCS(outcome_of(line->worker, ucp_ep_close_nbx(line->ep, &param)));
	meet(line->worker);
	ucp_worker_destroy(line->worker);
}

/* Fills memory with bytes that depend on the seed. */
static inline void fill(void *to, size_t length, uint64_t seed)
{
	uint64_t state = seed * 0x9e3779b97f4a7c15u + 1, word;
	char *at = to;

	for (; length > 0; at += sizeof(word)) {
		size_t part = length < sizeof(word) ? length : sizeof(word);

		state = state * 6364136223846793005u + 1442695040888963407u;
		word = state ^ state >> 29;
		memcpy(at, &word, part);
		length -= part;
	}
}

static inline void expect(const void *at, size_t length, uint64_t seed)
{
	char *wanted = malloc(length + 1);

	CHECK(wanted);
	fill(wanted, length, seed);
	CHECK(memcmp(at, wanted, length) == 0);
	free(wanted);
}
