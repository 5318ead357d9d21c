/* A program that has received a message may end at once, in any way. The sender must still get the acknowledgement of
 * this message. Here the receiver is a child process. Both processes use plain verbs, without rdma_cm. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>

#include "common.h"

/* Number of answers after which the RNIC delays acknowledgements, to send an acknowledgement with the next answer. */
#define ANSWERS 12
#define ROUNDS 3
/* Number of rounds with daemon(). If the process ends slowly, the last acknowledgement leaves in time even with a
 * defect. A single round therefore shows a defect in less than half of all cases. */
#define ROUNDS_OF_DAEMON 20

extern char **environ;

static char memory[4096];
static struct ibv_mr *mr;
static struct ibv_cq *cq;
static struct ibv_qp *qp;

/* Data that each end must know about the other end. */
struct end {
	union ibv_gid gid;
	uint32_t qpn;
};

static void end_by_return(void) { exit(0); }
static void end_by__exit(void) { _exit(0); }
static void end_by__Exit(void) { _Exit(0); }
static void end_by_quick_exit(void) { quick_exit(0); }
static void end_by_execl(void) { execl("/bin/true", "true", "1", "2", "3", "4", "5", "6", "7", "8", (char *)NULL); }
static void end_by_execlp(void) { execlp("true", "true", (char *)NULL); }
static void end_by_execle(void) { execle("/bin/true", "true", "an argument", (char *)NULL, environ); }
static void end_by_execv(void) { execv("/bin/true", (char *[]){ "true", NULL }); }
static void end_by_execvp(void) { execvp("true", (char *[]){ "true", NULL }); }
static void end_by_execve(void) { execve("/bin/true", (char *[]){ "true", NULL }, environ); }
static void end_by_fexecve(void) { fexecve(open("/bin/true", O_RDONLY), (char *[]){ "true", NULL }, environ); }

/* After a failed exec the program continues, and ends by _exit. */
static void end_by_failing_exec(void)
{
	CHECK(execv("/nonexistent", (char *[]){ "nonexistent", NULL }) == -1 && errno == ENOENT);
	_exit(0);
}

static void on_signal(int number)
{
	(void)number;
	_exit(0);
}

static void end_by_signal_handler(void)
{
	signal(SIGUSR1, on_signal);
	raise(SIGUSR1);
}

/* daemon() forks and ends the parent. The child does not have the device. */
static void end_by_daemon(void)
{
	CHECK(daemon(1, 1) == 0);
	_exit(0);
}

static void (*const endings[])(void) = {
	end_by_return,	 end_by__exit, end_by__Exit,  end_by_quick_exit, end_by_execl,	 end_by_execlp,
	end_by_execle,	 end_by_execv, end_by_execvp, end_by_execve,	 end_by_fexecve, end_by_failing_exec,
	end_by_signal_handler, end_by_daemon,
};

static void open_end(int link)
{
	struct end own, other;

	open_device();
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	qp = create_qp(cq, NULL, IBV_QPT_RC, 16);
	memset(&own, 0, sizeof(own)); /* also the padding, which is written to the socket */
	own.gid = gid;
	own.qpn = qp->qp_num;
	CHECK(write(link, &own, sizeof(own)) == sizeof(own));
	CHECK(read(link, &other, sizeof(other)) == sizeof(other));
	gid = other.gid;
	to_init(qp);
	to_rtr(qp, other.qpn);
	to_rts(qp);
}

static void wait_for(int link)
{
	char byte;

	CHECK(read(link, &byte, 1) == 1);
}

static void expect(uint64_t id)
{
	struct ibv_wc wc = next_completion(cq);

	CHECK(wc.wr_id == id && wc.status == IBV_WC_SUCCESS);
}

/* Sends an unsignalled answer, because its acknowledgement may arrive after the next message of the peer. */
static void answer(void)
{
	struct ibv_sge sge = { (uintptr_t)memory, 8, mr->lkey };
	struct ibv_send_wr wr = { .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND }, *bad;

	CHECK(ibv_post_send(qp, &wr, &bad) == 0);
}

static void receive(int link, int answers, void (*end)(void))
{
	open_end(link);
	CHECK(post_receive(qp, NULL, 0, mr, memory, 64) == 0);
	CHECK(write(link, "r", 1) == 1);
	wait_for(link);
	for (int round = 0; round < answers; round++) {
		expect(round);
		CHECK(post_receive(qp, NULL, round + 1, mr, memory, 64) == 0);
		answer();
	}
	expect(answers);
	end();
	fprintf(stderr, "the process did not end\n");
	abort();
}

static pid_t start_receiver(int answers, void (*end)(void), int *link)
{
	int links[2];
	pid_t child;

	CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, links) == 0);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		close(links[0]);
		receive(links[1], answers, end);
	}
	close(links[1]);
	*link = links[0];
	return child;
}

static void send_to(int answers, void (*end)(void))
{
	int link, status;
	pid_t child = start_receiver(answers, end, &link);

	open_end(link);
	CHECK(write(link, "s", 1) == 1);
	wait_for(link);
	for (int round = 0; round < answers; round++) {
		struct ibv_wc first, second;

		CHECK(post_receive(qp, NULL, 200, mr, memory, 64) == 0);
		CHECK(post(qp, IBV_WR_SEND, round, mr, memory, 16, NULL, NULL) == 0);
		first = next_completion(cq);
		second = next_completion(cq);
		CHECK(first.status == IBV_WC_SUCCESS && second.status == IBV_WC_SUCCESS);
	}
	CHECK(post(qp, IBV_WR_SEND, answers, mr, memory, 16, NULL, NULL) == 0);
	expect(answers);
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	close(link);
	CHECK(ibv_destroy_qp(qp) == 0 && ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
	close_device();
}

/* A signal handler that ends the process may interrupt a thread that holds locks of the device or of malloc. */
static void ends_within_a_call(void)
{
	for (int round = 0; round < 40; round++) {
		struct itimerval soon = { .it_value = { .tv_usec = 2000 + 137 * round } };
		struct timespec before, after;
		int status;
		pid_t child;

		CHECK((child = fork()) >= 0);
		if (child == 0) {
			struct ibv_wc wc;

			open_device();
			CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
			signal(SIGALRM, on_signal);
			CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
			for (;;) {
				struct ibv_cq *other = ibv_create_cq(context, 16, NULL, NULL, 0);

				CHECK(other && ibv_poll_cq(cq, 1, &wc) == 0 && ibv_destroy_cq(other) == 0);
			}
		}
		CHECK(clock_gettime(CLOCK_MONOTONIC, &before) == 0);
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		CHECK(clock_gettime(CLOCK_MONOTONIC, &after) == 0);
		/* The time limit only detects a deadlock. */
		CHECK(after.tv_sec - before.tv_sec < PATIENCE_MS / 1000);
	}
}

/* A vforked child shares the memory of its parent. The end of the child must not close the parent's device. */
static void children_end_alone(void)
{
	struct ibv_wc wc;
	pid_t child;
	int status;

	open_device();
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	for (int round = 0; round < 20; round++) {
		CHECK((child = vfork()) >= 0);
		if (child == 0) {
			if (round % 2)
				execl("/bin/true", "true", (char *)NULL);
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
		CHECK(ibv_poll_cq(cq, 1, &wc) == 0);
		CHECK((child = fork()) >= 0);
		if (child == 0)
			exit(0);
		CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	}
	CHECK(ibv_destroy_cq(cq) == 0);
	close_device();
}

static void *live_on(void *unused)
{
	(void)unused;
	usleep(100000);
	return NULL;
}

/* A program whose main thread ends first ends with its last thread. */
static void ends_with_the_last_thread(void)
{
	int status = 0, waited_ms = 0;
	pid_t child, ended;

	CHECK((child = fork()) >= 0);
	if (child == 0) {
		pthread_t thread;

		open_device();
		CHECK(pthread_create(&thread, NULL, live_on, NULL) == 0);
		pthread_exit(NULL);
	}
	while ((ended = waitpid(child, &status, WNOHANG)) == 0 && waited_ms++ < PATIENCE_MS)
		usleep(1000);
	if (ended == 0)
		kill(child, SIGKILL); /* no other signal is certain to end it */
	CHECK(ended == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(int count, char **arguments)
{
	for (size_t end = 0; end < sizeof(endings) / sizeof(*endings); end++)
		for (int round = 0; round < (endings[end] == end_by_daemon ? ROUNDS_OF_DAEMON : ROUNDS); round++) {
			send_to(0, endings[end]);
			send_to(ANSWERS, endings[end]);
		}
	ends_within_a_call();
	children_end_alone();
	/* Without preloading, the library does not see that the main thread leaves. */
	if (count < 2 || strcmp(arguments[1], "alone") != 0)
		ends_with_the_last_thread();
	return 0;
}
