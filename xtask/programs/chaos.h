/* The plan of one end of a disturbed pair, its lanes, and the acts that disturb this end. `chaos.c` has the traffic. */
#define _GNU_SOURCE
static int failed_status = 1;
#define CHECK_STATUS failed_status

#include <limits.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <signal.h>
#include <spawn.h>
#include <stdatomic.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "common.h"

#define LANES 3
#define WINDOW 8
#define SLOT 2048
#define STATUS_ENDED 3
#define STATUS_REFUSED 4
#define STATUS_ACT 7
#define LINK STDIN_FILENO

extern char **environ;

/* Wrong data are an error under every disturbance. */
#define RIGHT(x)                                                                    \
	do {                                                                        \
		if (!(x)) {                                                         \
			fprintf(stderr, "%s:%d: wrong data: %s\n", __FILE__, __LINE__, #x); \
			_exit(1);                                                   \
		}                                                                   \
	} while (0)

/* Times are in microseconds. `stage` is the stage of the act; -1 means `after` the start of the traffic. */
static struct plan {
	const char *act, *via;
	long seed, us, after, stage, timeout, stack, port, lane, server;
} plan = { .act = "none", .via = "verbs", .us = 1000000, .stage = -1, .timeout = 14 };

struct message {
	uint64_t number, lane, last, length;
	uint8_t body[SLOT - 32];
};

struct room {
	struct message out[WINDOW], in[WINDOW];
	uint64_t pattern[64], read[64], word, old;
};

struct lane {
	int number, sleeps, gone;
	atomic_int is_to_unmap;
	struct rdma_cm_id *id;
	struct ibv_comp_channel *channel;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	struct room *room;
	struct end {
		union ibv_gid gid;
		uint32_t qpn, rkey;
		uint64_t room;
	} other;
	uint64_t sent, acknowledged, received, added;
	enum ibv_wc_status status;
	pthread_t thread;
};

static struct lane lanes[LANES];
static struct rdma_event_channel *events;
static atomic_int handled, is_traffic_over;

static int is(const char *act) { return strcmp(plan.act, act) == 0; }

static long now_us(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

static uint8_t body_byte(const struct message *message, uint64_t at)
{
	return message->number * 131 + message->lane * 17 + at * 7 + (at >> 8);
}

/* ---- the acts ---- */

static void on_signal(int number)
{
	(void)number;
	handled++;
}

static void reap(pid_t child)
{
	int status;

	while (waitpid(child, &status, 0) == -1)
		CHECK(errno == EINTR);
	if (!WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		fprintf(stderr, "a child ended with wait status %#x\n", status);
		exit(1);
	}
}

/* Checks that a forked child can open the device again. */
static void use_device_anew(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	struct ibv_context *own;
	struct ibv_pd *domain;

	CHECK(list && (own = ibv_open_device(list[0])));
	CHECK((domain = ibv_alloc_pd(own)) && ibv_dealloc_pd(domain) == 0 && ibv_close_device(own) == 0);
	ibv_free_device_list(list);
}

static void fork_one(void)
{
	pid_t child;

	if (is("posix_spawn")) {
		CHECK(posix_spawnp(&child, "true", NULL, NULL, (char *[]){ "true", NULL }, environ) == 0);
		reap(child);
		return;
	}
	if (is("system")) {
		CHECK(system("true") == 0);
		return;
	}
	if (is("vfork")) {
		CHECK((child = vfork()) >= 0);
		if (child == 0) {
			execlp("true", "true", (char *)NULL);
			_exit(1);
		}
		reap(child);
		return;
	}
	CHECK((child = fork()) >= 0);
	if (child > 0) {
		reap(child);
		return;
	}
	alarm(PATIENCE_MS / 1000); /* a signal ends a stuck child */
	if (is("fork_exec"))
		execlp("true", "true", (char *)NULL);
	if (is("fork_exit"))
		exit(0);
	if (is("fork_open"))
		use_device_anew();
	_exit(0);
}

/* Ends the parent at once. Its child, which calls no exec, ends later. */
static void leave_a_child(void)
{
	pid_t child;

	CHECK((child = fork()) >= 0);
	if (child == 0) {
		close(LINK);
		usleep(700000);
		_exit(0);
	}
	_exit(STATUS_ACT);
}

/* Limits the number of descriptors, so that no further descriptor can be opened. */
static void exhaust_descriptors(void)
{
	struct rlimit limit;
	struct ibv_device **list;
	int unused = dup(LINK);

	CHECK(unused >= 0 && getrlimit(RLIMIT_NOFILE, &limit) == 0);
	close(unused);
	limit.rlim_cur = unused;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	/* Both calls must fail with an errno. */
	if ((list = ibv_get_device_list(NULL))) {
		struct ibv_context *own = list[0] ? ibv_open_device(list[0]) : NULL;

		if (own)
			ibv_close_device(own);
		ibv_free_device_list(list);
	}
	if (context) {
		struct ibv_comp_channel *channel = ibv_create_comp_channel(context);

		if (channel)
			ibv_destroy_comp_channel(channel);
	}
}

static void storm(int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };
	struct itimerval often = { { 0, 3000 }, { 0, 3000 } }, never = { { 0, 0 }, { 0, 0 } };
	unsigned random = plan.seed;

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0 && sigaction(SIGALRM, &action, NULL) == 0);
	CHECK(setitimer(ITIMER_REAL, &often, NULL) == 0);
	while (!is_traffic_over) {
		pthread_kill(lanes[rand_r(&random) % LANES].thread, SIGUSR1);
		usleep(rand_r(&random) % 500);
	}
	CHECK(setitimer(ITIMER_REAL, &never, NULL) == 0);
}

static void act(void)
{
	if (is("_exit"))
		_exit(STATUS_ACT);
	if (is("exit"))
		exit(STATUS_ACT);
	if (is("quick_exit"))
		quick_exit(STATUS_ACT);
	if (is("exec")) {
		execl("/proc/self/exe", "chaos", "act=new", (char *)NULL);
		CHECK(!"exec");
	}
	if (is("orphan"))
		leave_a_child();
	if (strncmp(plan.act, "fork", 4) == 0 || is("vfork") || is("posix_spawn") || is("system"))
		fork_one();
	if (is("cancel") && lanes[plan.lane].thread)
		CHECK(pthread_cancel(lanes[plan.lane].thread) == 0);
	if (is("close"))
		for (int descriptor = 3; descriptor < 256; descriptor++)
			close(descriptor);
	if (is("exhaust"))
		exhaust_descriptors();
	if (is("unmap"))
		lanes[plan.lane].is_to_unmap = 1;
	if (is("restart"))
		storm(SA_RESTART);
	if (is("interrupt"))
		storm(0);
	if (is("onstack"))
		storm(SA_ONSTACK);
}

static void stage(int number)
{
	if (plan.stage == number)
		act();
}

static void *act_in_time(void *unused)
{
	(void)unused;
	usleep(plan.after);
	act();
	return NULL;
}
