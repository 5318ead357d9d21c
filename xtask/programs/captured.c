/* A program whose argument selects the way in which it ends, in most cases with its device open. Its capture must be
 * complete. The program posts ten WRITEs between two queue pairs of one device, and waits for each WRITE. */
#include <pthread.h>
#include <signal.h>

#include "common.h"

#define WRITES 10

static char memory[64];

static void *wait_and_end(void *unused)
{
	(void)unused;
	usleep(100000);
	return NULL;
}

int main(int argc, char **argv)
{
	const char *end = argc > 1 ? argv[1] : "return";
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
	struct ibv_cq *cq;
	pthread_t thread;

	open_device();
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	a = create_qp(cq, NULL, IBV_QPT_RC, 16);
	b = create_qp(cq, NULL, IBV_QPT_RC, 16);
	connect_pair(a, b);
	for (int round = 0; round < WRITES; round++) {
		CHECK(post(a, IBV_WR_RDMA_WRITE, round, mr, memory, 8, mr, memory + 32) == 0);
		CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
	}
	if (strcmp(end, "close") == 0) {
		CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
		CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
		close_device();
	} else if (strcmp(end, "exit") == 0) {
		exit(0);
	} else if (strcmp(end, "_exit") == 0) {
		_exit(0);
	} else if (strcmp(end, "_Exit") == 0) {
		_Exit(0);
	} else if (strcmp(end, "quick_exit") == 0) {
		quick_exit(0);
	} else if (strcmp(end, "exec") == 0) {
		execl("/bin/true", "true", (char *)NULL);
		return 1;
	} else if (strcmp(end, "daemon") == 0) {
		CHECK(daemon(1, 1) == 0);
		_exit(0);
	} else if (strcmp(end, "thread") == 0) {
		/* The last thread to end is not the main thread. */
		CHECK(pthread_create(&thread, NULL, wait_and_end, NULL) == 0);
		pthread_exit(NULL);
	} else if (strcmp(end, "wait") == 0) {
		/* Waits until a signal kills the process. */
		for (;;)
			pause();
	} else {
		CHECK(strcmp(end, "return") == 0);
	}
	return 0;
}
