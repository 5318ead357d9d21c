/* A thread waits for events while it is cancelled, while signals arrive, and while another thread forks. The C library
 * then unwinds or interrupts a stack with frames of the preloaded library. Handlers also leave waits by siglongjmp. */
#define _GNU_SOURCE
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#include "common.h"

#define ROUNDS 20

static struct ibv_comp_channel *channel;
static volatile sig_atomic_t handled;

static void on_signal(int number)
{
	(void)number;
	handled++;
}

/* Waits for a notification, which never comes. Returns the errno of the interrupted wait. */
static void *wait_forever(void *unused)
{
	struct ibv_cq *cq;
	void *cq_context;

	(void)unused;
	CHECK(ibv_get_cq_event(channel, &cq, &cq_context) == -1);
	return (void *)(intptr_t)errno;
}

static void handle(int flags)
{
	struct sigaction action = { .sa_handler = on_signal, .sa_flags = flags };

	CHECK(sigaction(SIGUSR1, &action, NULL) == 0);
}

static void fork_one(void)
{
	int status;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		struct ibv_context *own;

		alarm(PATIENCE_MS / 1000); /* kills a stuck child */
		CHECK((own = ibv_open_device(devices[0])) && ibv_close_device(own) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && status == 0);
}

static sigjmp_buf back;
static atomic_int jumps, jumper;

static void jump(int number)
{
	(void)number;
	siglongjmp(back, 1);
}

/* Waits ROUNDS times. The handler of a signal ends each wait. Afterwards this thread has nothing of the waits left. */
static void *wait_until_a_jump(void *unused)
{
	int state, type;

	jumper = syscall(SYS_gettid);
	while (jumps < ROUNDS)
		if (sigsetjmp(back, 1) == 0)
			wait_forever(unused);
		else
			jumps++;
	CHECK(pthread_setcancelstate(PTHREAD_CANCEL_ENABLE, &state) == 0 && state == PTHREAD_CANCEL_ENABLE);
	CHECK(pthread_setcanceltype(PTHREAD_CANCEL_DEFERRED, &type) == 0 && type == PTHREAD_CANCEL_DEFERRED);
	return NULL;
}

/* Returns the number of times that a thread has gone to sleep, or -1 while it runs. */
static long sleeps_of(int thread)
{
	char path[64], line[128], state = 0;
	long sleeps = -1;
	FILE *status;

	snprintf(path, sizeof(path), "/proc/self/task/%d/status", thread);
	CHECK((status = fopen(path, "r")));
	while (fgets(line, sizeof(line), status)) {
		sscanf(line, "State: %c", &state);
		sscanf(line, "voluntary_ctxt_switches: %ld", &sleeps);
	}
	CHECK(fclose(status) == 0);
	return state == 'S' ? sleeps : -1;
}

/* Waits until a thread has slept for a while without a break. */
static void until_asleep(int thread)
{
	long before, now = -1;

	do {
		before = now;
		usleep(3000);
		now = sleeps_of(thread);
	} while (now == -1 || now != before);
}

/* After handlers have left waits by siglongjmp, the descriptor counts each event, and threads can fork. */
static void leave_by_jumps(void)
{
	struct sigaction action = { .sa_handler = jump };
	struct pollfd readable = { .fd = channel->fd, .events = POLLIN };
	struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *of;
	struct ibv_qp *qp = create_qp(cq, NULL, IBV_QPT_RC, 1);
	struct ibv_recv_wr receive = { .wr_id = 1 }, *bad;
	pthread_t thread;
	void *own;

	CHECK(sigaction(SIGUSR2, &action, NULL) == 0);
	CHECK(pthread_create(&thread, NULL, wait_until_a_jump, NULL) == 0);
	while (!jumper)
		usleep(100);
	for (int round = 0; round < ROUNDS; round++) {
		until_asleep(jumper);
		CHECK(pthread_kill(thread, SIGUSR2) == 0);
		while (jumps == round)
			usleep(100);
	}
	CHECK(pthread_join(thread, NULL) == 0);
	fork_one();
	to_init(qp);
	CHECK(ibv_post_recv(qp, &receive, &bad) == 0 && ibv_req_notify_cq(cq, 0) == 0);
	to_error(qp); /* flushes the receive */
	CHECK(poll(&readable, 1, PATIENCE_MS) == 1);
	CHECK(ibv_get_cq_event(channel, &of, &own) == 0 && of == cq);
	ibv_ack_cq_events(of, 1);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0);
}

int main(void)
{
	pthread_t thread;
	void *ended;

	open_device();
	CHECK((channel = ibv_create_comp_channel(context)));
	for (int round = 0; round < ROUNDS; round++) {
		CHECK(pthread_create(&thread, NULL, wait_forever, NULL) == 0);
		usleep(round % 4 * 1000); /* the thread may still run or already sleep */
		fork_one();
		CHECK(pthread_cancel(thread) == 0);
		CHECK(pthread_join(thread, &ended) == 0 && ended == PTHREAD_CANCELED);
	}
	CHECK(pthread_create(&thread, NULL, wait_forever, NULL) == 0);
	handle(SA_RESTART);
	for (int round = 0; round < ROUNDS; round++) {
		int before = handled;

		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		while (handled == before)
			usleep(100);
		CHECK(pthread_tryjoin_np(thread, &ended) == EBUSY);
	}
	handle(0);
	do { /* the first signal may come before the thread waits again */
		CHECK(pthread_kill(thread, SIGUSR1) == 0);
		usleep(1000);
	} while (pthread_tryjoin_np(thread, &ended) == EBUSY);
	CHECK((intptr_t)ended == EINTR);
	leave_by_jumps();
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_device();
	return 0;
}
