/* A thread waits for events while it is cancelled, while signals arrive, and while another thread forks. The C library
 * then unwinds or interrupts a stack with frames of the preloaded library. */
#define _GNU_SOURCE
#include <pthread.h>
#include <signal.h>
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
	CHECK(ibv_destroy_comp_channel(channel) == 0);
	close_device();
	return 0;
}
