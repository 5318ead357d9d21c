/* Memory that becomes inaccessible while it is registered. Work requests that use such memory end with errors, and
 * the program continues. Handlers of SIGSEGV and SIGBUS that the program installs are called only for faults of the
 * program. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"

/* Functions of the C library that its headers do not declare, or only with other options. */
int __ppoll_chk(struct pollfd *list, nfds_t count, const struct timespec *time, const sigset_t *mask, size_t bytes);
int __sigaction(int signal, const struct sigaction *new, struct sigaction *old);
int __sigpause(int set, int is_number);

#define PAGE 4096
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Ways in which the second page becomes inaccessible. */
enum way { UNMAP, PROTECT, READ_ONLY, TRUNCATE, WAYS };

/* Operations that touch the second page, each with its direction. */
enum touch { SEND_FROM, WRITE_FROM, WRITE_TO, READ_FROM, READ_INTO, ADD_TO, SWAP_TO, ADD_RESULT, RECEIVE_INTO, TOUCHES };

static const enum ibv_wc_status expected[TOUCHES] = {
	[SEND_FROM] = IBV_WC_LOC_PROT_ERR, [WRITE_FROM] = IBV_WC_LOC_PROT_ERR, [WRITE_TO] = IBV_WC_REM_ACCESS_ERR,
	[READ_FROM] = IBV_WC_REM_OP_ERR, [READ_INTO] = IBV_WC_LOC_PROT_ERR, [ADD_TO] = IBV_WC_REM_ACCESS_ERR,
	[SWAP_TO] = IBV_WC_REM_ACCESS_ERR, [ADD_RESULT] = IBV_WC_LOC_PROT_ERR, [RECEIVE_INTO] = IBV_WC_REM_OP_ERR,
};

/* Returns whether the operation only reads the page. In this case, the page need not be writable. */
static int only_reads(enum touch touch)
{
	return touch == SEND_FROM || touch == WRITE_FROM || touch == READ_FROM;
}

static char *two_pages(int *file)
{
	char *memory;

	CHECK((*file = memfd_create("pages", 0)) >= 0 && ftruncate(*file, 2 * PAGE) == 0);
	memory = mmap(NULL, 2 * PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, *file, 0);
	CHECK(memory != MAP_FAILED);
	memset(memory, 5, 2 * PAGE);
	return memory;
}

/* Whether `take_away` also removes the handlers of faults. */
static int removes_handlers;

/* Removes all handlers of faults by system calls, as the runtime of Go does, so the C library does not know it. */
static void remove_handlers(void)
{
	struct {
		void *handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} none = { SIG_DFL, 0, NULL, 0 };

	CHECK(syscall(SYS_rt_sigaction, SIGSEGV, &none, NULL, 8) == 0);
	CHECK(syscall(SYS_rt_sigaction, SIGBUS, &none, NULL, 8) == 0);
}

static void take_away(char *page, int file, enum way way)
{
	if (removes_handlers)
		remove_handlers();
	switch (way) {
	case UNMAP:
		CHECK(munmap(page, PAGE) == 0);
		break;
	case PROTECT:
		CHECK(mprotect(page, PAGE, PROT_NONE) == 0);
		break;
	case READ_ONLY:
		CHECK(mprotect(page, PAGE, PROT_READ) == 0);
		break;
	default:
		CHECK(ftruncate(file, PAGE) == 0);
	}
}

static struct ibv_wc sleep_for_completion(struct ibv_comp_channel *channel, struct ibv_cq *cq)
{
	struct ibv_cq *of;
	void *own;
	struct ibv_wc wc;
	int found;

	while ((found = ibv_poll_cq(cq, 1, &wc)) == 0) {
		CHECK(ibv_req_notify_cq(cq, 0) == 0);
		if ((found = ibv_poll_cq(cq, 1, &wc)))
			break;
		CHECK(ibv_get_cq_event(channel, &of, &own) == 0);
		ibv_ack_cq_events(of, 1);
	}
	CHECK(found == 1);
	return wc;
}

static void fill(struct ibv_send_wr *wr, struct ibv_sge *sge, enum touch touch, char *good, char *gone, uint32_t rkey)
{
	static const enum ibv_wr_opcode opcodes[TOUCHES] = {
		[SEND_FROM] = IBV_WR_SEND, [WRITE_FROM] = IBV_WR_RDMA_WRITE, [WRITE_TO] = IBV_WR_RDMA_WRITE,
		[READ_FROM] = IBV_WR_RDMA_READ, [READ_INTO] = IBV_WR_RDMA_READ, [ADD_TO] = IBV_WR_ATOMIC_FETCH_AND_ADD,
		[SWAP_TO] = IBV_WR_ATOMIC_CMP_AND_SWP, [ADD_RESULT] = IBV_WR_ATOMIC_FETCH_AND_ADD,
		[RECEIVE_INTO] = IBV_WR_SEND,
	};
	int is_local = touch == SEND_FROM || touch == WRITE_FROM || touch == READ_INTO || touch == ADD_RESULT;
	uint64_t remote = (uintptr_t)(is_local ? good : gone);

	sge->addr = (uintptr_t)(is_local ? gone : good);
	wr->opcode = opcodes[touch];
	wr->send_flags = IBV_SEND_SIGNALED;
	wr->sg_list = sge;
	wr->num_sge = 1;
	if (touch == ADD_TO || touch == SWAP_TO || touch == ADD_RESULT) {
		wr->wr.atomic.remote_addr = remote;
		wr->wr.atomic.rkey = rkey;
	} else {
		wr->wr.rdma.remote_addr = remote;
		wr->wr.rdma.rkey = rkey;
	}
}

/* Moves `length` bytes by one operation. The last byte, or all bytes, lie in the inaccessible page. */
static void touch_gone(enum touch touch, enum way way, uint32_t length, int asleep)
{
	int file;
	char *memory = two_pages(&file), *gone = memory + PAGE - (length > 8 ? length - 1 : 0), *good = memory;
	struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, channel, 0);
	struct ibv_qp *a = create_qp(cq, NULL, IBV_QPT_RC, 4), *b = create_qp(cq, NULL, IBV_QPT_RC, 4);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * PAGE, ALL);
	struct ibv_sge sge = { .length = length }, receive = { .length = length };
	struct ibv_send_wr wr = { .wr_id = 2 }, *bad;
	struct ibv_recv_wr recv = { .wr_id = 3, .sg_list = &receive, .num_sge = 1 }, *bad_recv;
	int succeeds = way == READ_ONLY && only_reads(touch), seen = 0, ends;

	CHECK(channel && cq && mr);
	connect_pair(a, b);
	fill(&wr, &sge, touch, good, gone, mr->rkey);
	sge.lkey = receive.lkey = mr->lkey;
	receive.addr = (uintptr_t)(touch == RECEIVE_INTO ? gone : good);
	if (wr.opcode == IBV_WR_SEND)
		CHECK(ibv_post_recv(b, &recv, &bad_recv) == 0);
	take_away(memory + PAGE, file, way);
	CHECK(ibv_post_send(a, &wr, &bad) == 0);
	/* The request ends. The receive also ends if it has an error of its own or gets the message. */
	ends = 1 + (touch == RECEIVE_INTO || (touch == SEND_FROM && succeeds));
	while (seen < ends) {
		struct ibv_wc wc = asleep ? sleep_for_completion(channel, cq) : next_completion(cq);

		if (wc.wr_id == 2)
			CHECK(wc.status == (succeeds ? IBV_WC_SUCCESS : expected[touch]));
		else
			CHECK(wc.status == (succeeds ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
		seen++;
	}
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(mr) == 0);
	CHECK(ibv_destroy_cq(cq) == 0 && ibv_destroy_comp_channel(channel) == 0);
	munmap(memory, 2 * PAGE);
	close(file);
}

/* With datagrams and unreliable connections, the receive fails, and the sender does not notice the failure. */
static void receive_gone(enum ibv_qp_type type, enum way way)
{
	int file;
	char *memory = two_pages(&file);
	struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
	struct ibv_qp *a = create_qp(cq, NULL, type, 4), *b = create_qp(cq, NULL, type, 4);
	struct ibv_mr *mr = ibv_reg_mr(pd, memory, 2 * PAGE, ALL);
	struct ibv_sge sge = { (uintptr_t)memory, 64, mr->lkey }, into = { (uintptr_t)memory + PAGE, 128, mr->lkey };
	struct ibv_send_wr wr = { .wr_id = 2, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
				  .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_recv_wr recv = { .wr_id = 3, .sg_list = &into, .num_sge = 1 }, *bad_recv;
	struct ibv_ah_attr attr = { .is_global = 1, .port_num = 1, .grh = { .dgid = gid, .hop_limit = 1 } };
	struct ibv_ah *ah = ibv_create_ah(pd, &attr);

	CHECK(cq && mr && ah);
	connect_pair(a, b);
	if (type == IBV_QPT_UD) {
		wr.wr.ud.ah = ah;
		wr.wr.ud.remote_qpn = b->qp_num;
		wr.wr.ud.remote_qkey = 0x1234;
	}
	CHECK(ibv_post_recv(b, &recv, &bad_recv) == 0);
	take_away(memory + PAGE, file, way);
	CHECK(ibv_post_send(a, &wr, &bad) == 0);
	for (int seen = 0; seen < 2; seen++) {
		struct ibv_wc wc = next_completion(cq);

		CHECK(wc.status == (wc.wr_id == 2 ? IBV_WC_SUCCESS : IBV_WC_LOC_PROT_ERR));
	}
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_destroy_ah(ah) == 0);
	CHECK(ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
	munmap(memory, 2 * PAGE);
	close(file);
}

static void touch_all(int asleep)
{
	static const uint32_t lengths[] = { 8, 16, 40, 100, 400, 1024, 3000 };

	for (int way = 0; way < WAYS; way++) {
		for (int touch = 0; touch < TOUCHES; touch++)
			for (unsigned i = 0; i < sizeof(lengths) / sizeof(lengths[0]); i++)
				if (lengths[i] == 8 || (touch != ADD_TO && touch != SWAP_TO && touch != ADD_RESULT))
					touch_gone(touch, way, lengths[i], asleep);
		receive_gone(IBV_QPT_UD, way);
		receive_gone(IBV_QPT_UC, way);
	}
}

static void *in_a_thread(void *unused)
{
	touch_gone(WRITE_TO, UNMAP, 1024, 0);
	touch_gone(SEND_FROM, TRUNCATE, 16, 0);
	return unused;
}

static void *with_all_blocked(void *unused)
{
	sigset_t all;

	/* The library unblocks the signals of faults in each thread only once, so block them after the first request. */
	in_a_thread(NULL);
	sigfillset(&all);
	CHECK(pthread_sigmask(SIG_SETMASK, &all, NULL) == 0);
	CHECK(sigprocmask(SIG_BLOCK, &all, NULL) == 0);
	return in_a_thread(unused);
}

static void run_thread(void *(*body)(void *), size_t stack, int masked)
{
	pthread_t thread;
	pthread_attr_t attr;
	sigset_t all, before;

	sigfillset(&all);
	CHECK(pthread_attr_init(&attr) == 0 && (!stack || pthread_attr_setstacksize(&attr, stack) == 0));
	/* The thread inherits this signal mask, which a direct system call sets. */
	if (masked)
		CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &all, &before, 8) == 0);
	CHECK(pthread_create(&thread, &attr, body, NULL) == 0);
	if (masked)
		CHECK(syscall(SYS_rt_sigprocmask, SIG_SETMASK, &before, NULL, 8) == 0);
	CHECK(pthread_join(thread, NULL) == 0);
}

static sigjmp_buf back;
static volatile int caught;
static volatile char *hole;

static void catch_and_jump(int signal)
{
	(void)signal;
	caught++;
	siglongjmp(back, 1);
}

static void catch_and_mend(int signal, siginfo_t *info, void *context)
{
	(void)signal, (void)context;
	CHECK(info->si_addr == (void *)hole);
	caught++;
	/* Let copies of the RNIC fault while the program's handler runs. */
	in_a_thread(NULL);
	CHECK(mprotect((void *)hole, PAGE, PROT_READ | PROT_WRITE) == 0);
}

static void use_memory(int signal)
{
	(void)signal;
	in_a_thread(NULL);
	caught++;
}

/* Installs a handler that blocks all signals while it runs. */
static void handle_blocking_all(int signal)
{
	struct sigaction action = { .sa_handler = use_memory };

	sigfillset(&action.sa_mask);
	CHECK(sigaction(signal, &action, NULL) == 0);
}

static void handlers_that_block(void)
{
	int before = caught;

	handle_blocking_all(SIGUSR1);
	CHECK(raise(SIGUSR1) == 0 && raise(SIGUSR2) == 0);
	CHECK(caught == before + 2);
}

static void fault_and_jump(void)
{
	int before = caught;

	if (sigsetjmp(back, 1) == 0) {
		*hole = 1;
		CHECK(!"the program's own fault called no handler");
	}
	CHECK(caught == before + 1);
}

static void fault_and_mend(void)
{
	int before = caught;

	CHECK(mprotect((void *)hole, PAGE, PROT_NONE) == 0);
	*hole = 1;
	CHECK(caught == before + 1 && *hole == 1);
	CHECK(mprotect((void *)hole, PAGE, PROT_NONE) == 0);
}

static void handlers_of_the_program(void)
{
	struct sigaction jump = { .sa_handler = catch_and_jump }, mend = { .sa_flags = SA_SIGINFO }, old;
	stack_t stack = { .ss_sp = malloc(SIGSTKSZ * 16), .ss_size = SIGSTKSZ * 16 };

	mend.sa_sigaction = catch_and_mend;
	sigfillset(&jump.sa_mask);
	hole = mmap(NULL, PAGE, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(sigaltstack(&stack, NULL) == 0);
	for (int on_stack = 0; on_stack < 2; on_stack++) {
		jump.sa_flags = on_stack ? SA_ONSTACK : 0;
		CHECK(sigaction(SIGSEGV, &jump, NULL) == 0);
		for (int i = 0; i < 3; i++) {
			fault_and_jump();
			in_a_thread(NULL);
		}
		CHECK(sigaction(SIGSEGV, &mend, &old) == 0);
		CHECK(old.sa_handler == catch_and_jump && sigismember(&old.sa_mask, SIGUSR1) == 1);
		fault_and_mend();
		in_a_thread(NULL);
	}
	CHECK(signal(SIGSEGV, SIG_DFL) != SIG_ERR);
	CHECK(signal(SIGSEGV, catch_and_jump) == SIG_DFL);
	fault_and_jump();
	CHECK(signal(SIGSEGV, SIG_DFL) == catch_and_jump);
	CHECK(signal(SIGBUS, SIG_IGN) == SIG_DFL && raise(SIGBUS) == 0);
	in_a_thread(NULL);
	CHECK(signal(SIGBUS, SIG_DFL) == SIG_IGN);
	stack.ss_flags = SS_DISABLE;
	CHECK(sigaltstack(&stack, NULL) == 0);
	free(stack.ss_sp);
}

/* The program's own faults end it in the same way as without an RNIC. */
static void deaths(void)
{
	for (int how = 0; how < 4; how++) {
		int status;
		pid_t child = fork();

		CHECK(child >= 0);
		if (child == 0) {
			struct sigaction once = { .sa_handler = catch_and_jump, .sa_flags = SA_RESETHAND };

			if (how == 0)
				*hole = 1;
			if (how == 1)
				raise(SIGSEGV);
			if (how == 2) {
				signal(SIGSEGV, SIG_IGN);
				*hole = 1;
			}
			CHECK(sigaction(SIGSEGV, &once, NULL) == 0);
			fault_and_jump();
			*hole = 1;
			_exit(0);
		}
		CHECK(waitpid(child, &status, 0) == child);
		CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	}
}

/* Handlers of other signals run with the mask of a wait. All these waits block all signals except SIGUSR1. */
static void handlers_within_waits(void)
{
	struct timespec long_time = { PATIENCE_MS / 1000, 0 };
	struct sigaction action = { .sa_handler = use_memory };
	int epoll = epoll_create1(0), before = caught;
	struct epoll_event event;
	sigset_t one, others;

	CHECK(epoll >= 0 && sigaction(SIGUSR1, &action, NULL) == 0);
	CHECK(sigemptyset(&one) == 0 && sigaddset(&one, SIGUSR1) == 0);
	CHECK(sigfillset(&others) == 0 && sigdelset(&others, SIGUSR1) == 0);
	CHECK(sigprocmask(SIG_BLOCK, &one, NULL) == 0);
	for (int wait = 0; wait < 6; wait++) {
		int ended = 0, why;

		CHECK(raise(SIGUSR1) == 0);
		switch (wait) {
		case 0:
			ended = sigsuspend(&others);
			break;
		case 1:
			ended = ppoll(NULL, 0, &long_time, &others);
			break;
		case 2:
			ended = __ppoll_chk(NULL, 0, &long_time, &others, 0);
			break;
		case 3:
			ended = pselect(0, NULL, NULL, NULL, &long_time, &others);
			break;
		case 4:
			ended = epoll_pwait(epoll, &event, 1, PATIENCE_MS, &others);
			break;
		default:
			ended = __sigpause(~(1 << (SIGUSR1 - 1)), 0);
		}
		why = errno; /* CHECK sets errno to 0 */
		CHECK(ended == -1 && why == EINTR && caught == before + wait + 1);
	}
	CHECK(sigprocmask(SIG_UNBLOCK, &one, NULL) == 0 && close(epoll) == 0);
}

/* Returns the handler that the kernel calls. */
static void *handler_of(int signal)
{
	void *action[4];

	CHECK(syscall(SYS_rt_sigaction, signal, NULL, action, 8) == 0);
	return action[0];
}

/* Older functions block and handle signals like the newer ones. */
static void older_functions(void)
{
	void *installed = handler_of(SIGSEGV);
	sigset_t before;

	CHECK(sigprocmask(SIG_SETMASK, NULL, &before) == 0);
	CHECK(sighold(SIGSEGV) == 0);
	in_a_thread(NULL);
	sigblock(~0);
	in_a_thread(NULL);
	sigsetmask(~0);
	in_a_thread(NULL);
	CHECK(sigprocmask(SIG_SETMASK, &before, NULL) == 0);
	CHECK(sigignore(SIGSEGV) == 0 && handler_of(SIGSEGV) == installed);
	CHECK(ssignal(SIGSEGV, catch_and_jump) == SIG_IGN && handler_of(SIGSEGV) == installed);
	CHECK(__sigaction(SIGSEGV, &(struct sigaction){ .sa_handler = SIG_DFL }, NULL) == 0);
	CHECK(handler_of(SIGSEGV) == installed && signal(SIGSEGV, SIG_DFL) == SIG_DFL);
}

static void (*library_handler)(int signal, siginfo_t *info, void *context);
static volatile int *chained;

static void chain(int signal, siginfo_t *info, void *context)
{
	++*chained;
	library_handler(signal, info, context);
}

/* A handler installed by a system call calls the handler that it has replaced, as Go's runtime does. The next
 * registration makes the library's handler the first one again. Then a fault of the program calls each handler once. */
static void handler_that_calls_the_library(void)
{
	struct {
		void *handler;
		unsigned long flags;
		void *restorer;
		uint64_t mask;
	} own = { chain, SA_SIGINFO | SA_NODEFER, NULL, 0 };
	int status;
	pid_t child;

	chained = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(chained != MAP_FAILED);
	library_handler = handler_of(SIGSEGV);
	CHECK(syscall(SYS_rt_sigaction, SIGSEGV, &own, NULL, 8) == 0);
	in_a_thread(NULL);
	CHECK(handler_of(SIGSEGV) == library_handler && *chained == 0);
	CHECK(mprotect((void *)hole, PAGE, PROT_NONE) == 0 && (child = fork()) >= 0);
	if (child == 0) {
		*hole = 1;
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
	CHECK(*chained == 1 && munmap((void *)chained, PAGE) == 0);
	CHECK((void *)signal(SIGSEGV, SIG_DFL) == chain);
}

/* After the handlers were removed four times, the RNIC no longer copies data itself, but lets the kernel copy them. So
 * it needs no handlers. */
static void handlers_by_system_call(void)
{
	for (int i = 0; i < 6; i++) {
		remove_handlers();
		in_a_thread(NULL);
	}
	removes_handlers = 1;
	touch_all(0);
}

int main(void)
{
	handle_blocking_all(SIGUSR2);
	open_device();
	touch_all(0);
	touch_all(1);
	run_thread(in_a_thread, 0, 0);
	run_thread(with_all_blocked, 0, 0);
	run_thread(in_a_thread, PTHREAD_STACK_MIN + 32768, 1);
	handlers_that_block();
	handlers_within_waits();
	older_functions();
	handlers_of_the_program();
	deaths();
	handler_that_calls_the_library();
	handlers_by_system_call();
	close_device();
	return 0;
}
