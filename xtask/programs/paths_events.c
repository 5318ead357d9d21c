/* Reads the paths of a device during all events in a process: signals, cancelled threads, forks, passed descriptors,
 * kills, limits, other users and sandboxes. */
#include "paths.h"

static volatile sig_atomic_t interrupted;

/* A signal handler may call open, stat and access at any interruption. */
static void look(int number)
{
	struct stat status;
	char text[64];
	int before = errno, fd;

	(void)number;
	if ((fd = open(PORT "/counters/port_xmit_packets", O_RDONLY)) < 0 || read(fd, text, sizeof(text)) < 2)
		_exit(3);
	close(fd);
	if (stat(uverbs, &status) || !S_ISCHR(status.st_mode) || faccessat(AT_FDCWD, PORT "/state", R_OK, 0))
		_exit(4);
	interrupted++;
	errno = before;
}

static void interrupting(void)
{
	struct ibv_device_attr attr;
	int i, round;

	CHECK(signal(SIGALRM, look) != SIG_ERR);
	for (round = 0; round < 200; round++) {
		/* Send only one signal per round, because a handler that waits for a lock may take longer than an interval. */
		struct itimerval soon = { { 0, 0 }, { 0, 20 + round } };

		CHECK(setitimer(ITIMER_REAL, &soon, NULL) == 0);
		for (i = 0; interrupted <= round && i < 1000000; i++) {
			void *some = malloc(i % 5000 + 1);

			CHECK(some && ibv_query_device(context, &attr) == 0);
			free(some);
			if (i % 4 == 0)
				counter("counters/port_xmit_data");
		}
		CHECK(interrupted == round + 1);
	}
	CHECK(signal(SIGALRM, SIG_DFL) != SIG_ERR);
}

static void *at_once(void *barrier)
{
	int i;

	pthread_barrier_wait(barrier);
	for (i = 0; i < 50; i++) {
		CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n"));
		CHECK(count(opendir(PORT "/counters"), NULL) == 17 && count(opendir("/etc"), "passwd") == 1);
		CHECK(counter("counters/port_xmit_data") < 1ull << 40);
	}
	return NULL;
}

/* Several threads make the first call on a virtual path at the same time. */
static void together(void)
{
	pthread_barrier_t barrier;
	pthread_t threads[8];
	int i;

	CHECK(pthread_barrier_init(&barrier, NULL, 8) == 0);
	for (i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, at_once, &barrier) == 0);
	for (i = 0; i < 8; i++)
		CHECK(pthread_join(threads[i], NULL) == 0);
}

static void *wait_in_open(void *path)
{
	open(path, O_RDONLY);
	return NULL;
}

/* A thread can be cancelled in the preloaded `open`, as in the `open` of the C library. */
static void cancelling(void)
{
	char path[PATH_MAX];
	pthread_t thread;
	void *result;

	snprintf(path, sizeof(path), "%s/fifo", folder);
	CHECK(mkfifo(path, 0600) == 0 && pthread_create(&thread, NULL, wait_in_open, path) == 0);
	usleep(20000);
	CHECK(pthread_cancel(thread) == 0 && pthread_join(thread, &result) == 0 && result == PTHREAD_CANCELED);
	CHECK(pthread_create(&thread, NULL, wait_in_open, PORT "/state") == 0 && pthread_join(thread, NULL) == 0);
	CHECK(unlink(path) == 0);
}

static void forking(void)
{
	pid_t child;
	DIR *listed;
	int at;

	CHECK((at = open(PORT, O_RDONLY)) >= 0 && (listed = opendir(DEVICE)) && readdir(listed));
	IN_CHILD(CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n") && count(opendir(PORT), "state") == 1);
		 CHECK(is(openat(at, "state", O_RDONLY), "4: ACTIVE\n") && count(listed, "ports") == 1));
	IN_CHILD(content(PORT "/state"); execl("/bin/true", "true", (char *)NULL));
	IN_CHILD(content(PORT "/state"); execl("/nonexistent", "x", (char *)NULL); content(PORT "/state"));
	CHECK(is(openat(at, "state", O_RDONLY), "4: ACTIVE\n"));
	/* This child shares the memory of the program. */
	if ((child = vfork()) == 0) {
		int fd = open(PORT "/state", O_RDONLY);

		_exit(fd < 0 || open(PORT, O_RDONLY) < 0 || chdir(PORT) < 0 || open("state", O_RDONLY) < 0);
	}
	CHECK(ends_with(child) == 0 && !strcmp(content(PORT "/state"), "4: ACTIVE\n"));
	CHECK(is(openat(at, "state", O_RDONLY), "4: ACTIVE\n") && count(listed, "ports") == 1);
	close(at);
}

/* Another program, which has used no virtual path yet, gets a descriptor of a virtual folder. */
static int received(int fd)
{
	char here[PATH_MAX];
	struct stat by_path, by_descriptor;
	struct dirent **found;
	DIR *listed;
	int again;

	CHECK(is(openat(fd, "state", O_RDONLY), "4: ACTIVE\n") && fstat(fd, &by_descriptor) == 0);
	CHECK(stat(PORT, &by_path) == 0 && by_path.st_ino == by_descriptor.st_ino && by_path.st_dev == by_descriptor.st_dev);
	CHECK((again = dup(fd)) >= 0 && (listed = fdopendir(again)) && count(listed, "counters") == 1);
	CHECK(scandirat(fd, "pkeys", &found, only_digits, NULL) == 1);
	CHECK(fchdir(fd) == 0 && getcwd(here, sizeof(here)) && !strcmp(here, REAL "/ports/1"));
	CHECK(is(open("state", O_RDONLY), "4: ACTIVE\n") && realpath(".", here) && !strcmp(here, REAL "/ports/1"));
	return 0;
}

/* Calls one function in a new program. In this way, each function is once the first to use the descriptor. */
static int received_by(int fd, const char *function)
{
	struct stat status;
	struct statx more;
	struct dirent **found;
	char text[64], here[PATH_MAX];

	switch (function[0]) {
	case 'o': return !is(openat(fd, "state", O_RDONLY), "4: ACTIVE\n");
	case '.': return !is(openat(fd, "../../ports/1/state", O_RDONLY), "4: ACTIVE\n");
	case 's': return fstatat(fd, "state", &status, 0) || status.st_size != 4096;
	case 'x': return statx(fd, "state", 0, STATX_BASIC_STATS, &more) || more.stx_size != 4096;
	case 'a': return faccessat(fd, "state", R_OK, 0);
	case 'l': return readlinkat(fd, "../../device", text, sizeof(text)) != 19;
	case 'd': return count(fdopendir(fd), "counters") != 1;
	case 'n': return scandirat(fd, ".", &found, NULL, NULL) < 10;
	case 'g': return getdents64(fd, here, sizeof(here)) < 100;
	case 'c': return fchdir(fd) || !is(open("state", O_RDONLY), "4: ACTIVE\n");
	case 'w': return fchdir(fd) || !getcwd(here, sizeof(here)) || strcmp(here, REAL "/ports/1");
	case 'f': return fstat(fd, &status) || status.st_nlink < 2;
	}
	return 1;
}

static void pass(int socket, int fd)
{
	char byte = 0, control[CMSG_SPACE(sizeof(int))] = "";
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	struct cmsghdr *header = CMSG_FIRSTHDR(&message);

	header->cmsg_level = SOL_SOCKET;
	header->cmsg_type = SCM_RIGHTS;
	header->cmsg_len = CMSG_LEN(sizeof(int));
	memcpy(CMSG_DATA(header), &fd, sizeof(fd));
	CHECK(sendmsg(socket, &message, 0) == 1);
}

static int taken(int socket)
{
	char byte, control[CMSG_SPACE(sizeof(int))];
	struct iovec data = { &byte, 1 };
	struct msghdr message = { .msg_iov = &data, .msg_iovlen = 1, .msg_control = control, .msg_controllen = sizeof(control) };
	int fd;

	CHECK(recvmsg(socket, &message, 0) == 1 && CMSG_FIRSTHDR(&message));
	memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&message)), sizeof(fd));
	return fd;
}

static void passing(void)
{
	const char *function;
	int at, ends[2];
	char number[16];

	CHECK((at = open(PORT, O_RDONLY)) >= 0 && socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0);
	snprintf(number, sizeof(number), "%d", at);
	IN_CHILD(execl(self, self, "received", number, (char *)NULL));
	for (function = "o.sxaldngcwf"; *function; function++) {
		char name[2] = { *function, 0 };

		IN_CHILD(execl(self, self, "received", number, name, (char *)NULL));
	}
	snprintf(number, sizeof(number), "%d", ends[1]);
	pass(ends[0], at);
	CHECK(fcntl(at, F_SETFD, FD_CLOEXEC) == 0);
	IN_CHILD(execl(self, self, "taken", number, (char *)NULL));
	close(at);
	close(ends[0]);
	close(ends[1]);
}

/* Calls all functions until the process is killed. */
static void look_forever(void)
{
	for (;;) {
		content(PORT "/state");
		count(opendir(PORT), "state");
		CHECK(chdir(DEVICE) == 0 && fclose(fopen("node_type", "r")) == 0);
	}
}

/* Runs a new program that lists a virtual folder. */
#define LIST() IN_CHILD(execl("/bin/sh", "sh", "-c", "ls " PORT "/pkeys > /dev/null", (char *)NULL))

/* Checks that virtual files never have a name in the file system, and that virtual folders have a name only briefly. */
static void naming(void)
{
	char events[4096] __attribute__((aligned(8)));
	const struct inotify_event *event;
	int watch, fd, at, made = 0, removed = 0;
	ssize_t length;

	CHECK((watch = inotify_init1(IN_NONBLOCK)) >= 0);
	CHECK(inotify_add_watch(watch, places, IN_CREATE | IN_DELETE | IN_MOVE) >= 0);
	content(PORT "/state");
	CHECK(fclose(fopen(PORT "/rate", "r")) == 0 && access(PORT, R_OK) == 0 && readlink(DEVICE, events, 9) == 9);
	FAILS(read(watch, events, sizeof(events)), EAGAIN);
	CHECK((fd = open(PORT, O_RDONLY)) >= 0 && close(fd) == 0);
	CHECK((length = read(watch, events, sizeof(events))) > 0);
	for (at = 0; at < length; at += sizeof(*event) + event->len) {
		event = (const struct inotify_event *)(events + at);
		CHECK(event->mask & IN_ISDIR && !strncmp(event->name, "doorbell-folder.", 16));
		made += !!(event->mask & IN_CREATE);
		removed += !!(event->mask & IN_DELETE);
	}
	CHECK(made == 1 && removed == 1);
	close(watch);
}

static void killing(void)
{
	static const char *const strange[] = { "doorbell-folder.0123456789abcdef", "doorbell-folder.0123456789abcdeX.!sys",
					       "doorbell-folders.0123456789abcdef.!sys" };
	char path[2 * PATH_MAX], inner[3 * PATH_MAX];
	size_t i;
	int round;

	for (round = 0; round < 100; round++) {
		pid_t child = fork();

		if (child == 0)
			look_forever();
		usleep(500 + 37 * round);
		CHECK(kill(child, SIGKILL) == 0 && ends_with(child) == SIGKILL);
	}
	/* Each kill leaves at most one empty folder. */
	CHECK(left_in(places) <= 100);
	snprintf(path, sizeof(path), "%s/doorbell-folder.0123456789abcdef.!sys!class!infiniband", places);
	CHECK(mkdir(path, 0700) == 0 && left_in(places) >= 1);
	LIST();
	CHECK(left_in(places) == 0);
	/* A folder with contents stays, and so do folders with other names. */
	snprintf(inner, sizeof(inner), "%s/kept", path);
	CHECK(mkdir(path, 0700) == 0 && mkdir(inner, 0700) == 0);
	LIST();
	CHECK(left_in(places) == 1 && rmdir(inner) == 0 && rmdir(path) == 0);
	for (i = 0; i < sizeof(strange) / sizeof(*strange); i++) {
		snprintf(path, sizeof(path), "%s/%s", places, strange[i]);
		CHECK(mkdir(path, 0700) == 0);
		LIST();
		CHECK(rmdir(path) == 0);
	}
	CHECK(left_in(places) == 0);
}

/* One free descriptor is enough for a call. Without a free descriptor, the call fails with EMFILE. */
static void exhausted(void)
{
	struct rlimit limit;
	FILE *file;
	int fd;

	CHECK((fd = dup(0)) >= 0 && close(fd) == 0);
	/* Valgrind does not allow another hard limit. */
	CHECK(getrlimit(RLIMIT_NOFILE, &limit) == 0);
	limit.rlim_cur = fd + 1;
	CHECK(setrlimit(RLIMIT_NOFILE, &limit) == 0);
	CHECK(is(open(PORT "/state", O_RDONLY), "4: ACTIVE\n") && count(opendir(PORT), "state") == 1);
	CHECK((file = fopen(PORT "/state", "r")) && fclose(file) == 0 && chdir(PORT) == 0);
	CHECK((fd = open(PORT "/state", O_RDONLY)) >= 0);
	FAILS(write(fd, "x", 1), EPERM);
	FAILS(open(PORT "/state", O_RDONLY), EMFILE);
	FAILS_NULL(fopen(PORT "/state", "r"), EMFILE);
	FAILS_NULL(opendir(PORT), EMFILE);
	CHECK(access(PORT "/state", R_OK) == 0);
}

/* In a full file system, virtual files need no space, and virtual folders are created in another directory. */
static void full(void)
{
	char path[2 * PATH_MAX];

	if (geteuid() != 0 || unshare(CLONE_NEWNS) != 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) != 0)
		return;
	CHECK(mount("none", places, "tmpfs", 0, "size=4k,nr_inodes=2,mode=700") == 0);
	snprintf(path, sizeof(path), "%s/taken", places);
	CHECK(mkdir(path, 0700) == 0);
	FAILS(mkdir(strcat(path, "2"), 0700), ENOSPC);
	CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n") && count(opendir(PORT), "state") == 1);
	CHECK(umount(places) == 0);
}

/* After chroot, the paths do not exist. Another user can read them. */
static void elsewhere(void)
{
	if (geteuid() != 0)
		return;
	IN_CHILD(content(PORT "/state"); CHECK(chroot(folder) == 0 && chdir("/") == 0); FAILS(open(PORT "/state", O_RDONLY), ENOENT);
		 FAILS(access(CLASS, F_OK), ENOENT); FAILS_NULL(opendir(CLASS), ENOENT);
		 FAILS(open("/etc/passwd", O_RDONLY), ENOENT); _exit(0));
	IN_CHILD(content(PORT "/state"); CHECK(setgid(65534) == 0 && setuid(65534) == 0);
		 CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n")); FAILS(access(PORT "/state", W_OK), EACCES);
		 FAILS(access(PORT, W_OK), EACCES); CHECK(access(uverbs, R_OK | W_OK) == 0 && count(opendir(PORT), "state") == 1));
}

#define OTHER_USER 65534

/* Another user can create any name in a shared directory. */
static void two_users(void)
{
	char path[2 * PATH_MAX], shared[PATH_MAX];
	int at;

	if (geteuid() != 0)
		return;
	snprintf(shared, sizeof(shared), "%s/shared", folder);
	CHECK(mkdir(shared, 0700) == 0 && chmod(shared, 01777) == 0 && setenv("DOORBELL_COUNTERS_DIR", shared, 1) == 0);
	snprintf(path, sizeof(path), "%s/doorbell-folder.0123456789abcdef.!sys!class!infiniband", shared);
	/* A remaining folder of another user is not removed. */
	CHECK(mkdir(path, 0700) == 0 && chown(path, OTHER_USER, OTHER_USER) == 0);
	LIST();
	CHECK(left_in(shared) == 1);
	IN_CHILD(CHECK(setgid(OTHER_USER) == 0 && setuid(OTHER_USER) == 0); CHECK(count(opendir(PORT), "state") == 1);
		 execl("/bin/sh", "sh", "-c", "ls " PORT " > /dev/null", (char *)NULL));
	CHECK(left_in(shared) == 0);
	/* No folder is created in a directory that another user owns, or in which other users may rename the folder. */
	IN_CHILD(CHECK(chmod(shared, 0777) == 0 && (at = inotify_init1(IN_NONBLOCK)) >= 0 &&
		       inotify_add_watch(at, shared, IN_CREATE) >= 0 && count(opendir(PORT), "state") == 1);
		 FAILS(read(at, path, sizeof(path)), EAGAIN);
		 CHECK(chmod(shared, 0700) == 0 && chown(shared, OTHER_USER, OTHER_USER) == 0 && count(opendir(PORT), "state") == 1);
		 FAILS(read(at, path, sizeof(path)), EAGAIN));
	CHECK(setenv("DOORBELL_COUNTERS_DIR", places, 1) == 0 && rmdir(shared) == 0);
}

/* Makes system calls fail, as a sandbox does. */
static void forbid(int number)
{
	struct sock_filter filter[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	struct sock_fprog program = { sizeof(filter) / sizeof(*filter), filter };

	CHECK(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 && prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) == 0);
}

static void forbid_mkdir(void)
{
#ifdef SYS_mkdir
	forbid(SYS_mkdir);
#endif
}

static void confined(void)
{
	struct dirent **found;

	/* A process that cannot create folders can read virtual files and list virtual folders, but not open such folders. */
	IN_CHILD(forbid(SYS_mkdirat); forbid_mkdir(); CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n"));
		 CHECK(scandir(DEVICE "/ports", &found, only_digits, alphasort) == 1 && access(PORT, R_OK) == 0);
		 FAILS(open(PORT, O_RDONLY), ENOENT); FAILS_NULL(opendir(PORT), ENOENT); FAILS(chdir(PORT), ENOENT);
		 CHECK(open("/etc/passwd", O_RDONLY) >= 0));
	IN_CHILD(forbid(SYS_memfd_create); CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n") && left_in(places) == 0));
	IN_CHILD(forbid(SYS_symlinkat); CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n")));
	IN_CHILD(forbid(SYS_getcwd); CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n")));
}

int main(int argc, char **argv)
{
	if (argc > 2 && !strcmp(argv[1], "received"))
		return argc > 3 ? received_by(atoi(argv[2]), argv[3]) : received(atoi(argv[2]));
	if (argc > 2 && !strcmp(argv[1], "taken"))
		return received(taken(atoi(argv[2])));
	begin(argv[0]);
	IN_CHILD(together());
	open_and_name();
	interrupting();
	cancelling();
	forking();
	passing();
	naming();
	killing();
	IN_CHILD(exhausted());
	IN_CHILD(full());
	elsewhere();
	two_users();
	confined();
	finish();
	return 0;
}
