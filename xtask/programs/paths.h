/* Shared code of programs that read /dev/infiniband, /sys/class/infiniband and related files. */
#ifndef PATHS_H
#define PATHS_H

#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <ftw.h>
#include <glob.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <sys/xattr.h>

#include "common.h"

#define CLASS "/sys/class/infiniband"
#define DEVICE CLASS "/doorbell0"
#define PORT DEVICE "/ports/1"
#define PARENT "/sys/devices/platform/doorbell.0"
#define REAL PARENT "/infiniband/doorbell0"
#define VERBS "/sys/class/infiniband_verbs"

#define FAILS(call, number) CHECK((call) == -1 && errno == (number))
#define FAILS_NULL(call, number) CHECK((call) == NULL && errno == (number))

static char node[64], uverbs[PATH_MAX], folder[] = "/tmp/doorbell-paths-XXXXXX", places[PATH_MAX];
/* The path of this program. */
static char self[PATH_MAX];

#define content_of(fd) content_at(fd, __LINE__)
#define content(path) content_at(open(path, O_RDONLY), __LINE__)
#define is(fd, expected) (!strcmp(content_of(fd), expected))

static inline const char *content_at(int fd, int line)
{
	static __thread char text[4096];
	ssize_t length;

	if (fd < 0)
		fprintf(stderr, "%s:%d: errno %d\n", __FILE__, line, errno);
	CHECK(fd >= 0);
	CHECK((length = read(fd, text, sizeof(text) - 1)) >= 0);
	text[length] = 0;
	close(fd);
	return text;
}

/* Counts the entries with the wanted name, or all entries, and closes the folder. Skips names that begin with a dot. */
static inline int count(DIR *listed, const char *wanted)
{
	struct dirent *entry;
	int found = 0, all = 0;

	CHECK(listed);
	while ((entry = readdir(listed))) {
		if (entry->d_name[0] == '.')
			continue;
		all++;
		found += wanted && !strcmp(entry->d_name, wanted);
	}
	closedir(listed);
	return wanted ? found : all;
}

/* Counts folders that killed processes left in a directory. */
static inline int left_in(const char *path)
{
	DIR *listed = opendir(path);
	struct dirent *entry;
	int found = 0;

	CHECK(listed);
	while ((entry = readdir(listed)))
		found += !strncmp(entry->d_name, "doorbell-f", 10);
	closedir(listed);
	return found;
}

static inline int ends_with(pid_t child)
{
	int status;

	CHECK(child > 0 && waitpid(child, &status, 0) == child);
	return status;
}

/* Runs code in a child, which must succeed. */
#define IN_CHILD(body)                                  \
	do {                                            \
		pid_t child = fork();                   \
                                                        \
		if (child == 0) {                       \
			alarm(60);                      \
			body;                           \
			exit(0);                        \
		}                                       \
		CHECK(ends_with(child) == 0);           \
	} while (0)

static inline int only_digits(const struct dirent *entry)
{
	return entry->d_name[0] >= '0' && entry->d_name[0] <= '9';
}

static inline unsigned long long counter(const char *name)
{
	char path[PATH_MAX];

	snprintf(path, sizeof(path), PORT "/%s", name);
	return strtoull(content(path), NULL, 10);
}

/* Creates the folders of the program, and reads a path of the port before any device is open. */
static inline void begin(const char *program)
{
	CHECK(realpath(program, self) && mkdtemp(folder) && chmod(folder, 0755) == 0);
	snprintf(places, sizeof(places), "%s/own", folder);
	CHECK(mkdir(places, 0700) == 0 && setenv("DOORBELL_COUNTERS_DIR", places, 1) == 0);
	CHECK(!strcmp(content(PORT "/state"), "4: ACTIVE\n"));
}

/* Opens the device, and stores the names of its files. */
static inline void open_and_name(void)
{
	open_device();
	snprintf(node, sizeof(node), "%s", devices[0]->dev_name);
	snprintf(uverbs, sizeof(uverbs), "/dev/infiniband/%s", node);
}

/* Closes the device, and checks that no file is left. */
static inline void finish(void)
{
	close_device();
	CHECK(left_in(places) == 0 && chdir("/") == 0);
	CHECK((rmdir(places) == 0 || errno == ENOTEMPTY) && (rmdir(folder) == 0 || errno == ENOTEMPTY));
	puts("ok");
}

#endif
