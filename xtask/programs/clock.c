/* A preloaded library that makes the time of day jump by up to two days, back and forth, several times a second. The
 * library does not change the monotonic clock, which POSIX does not allow to jump. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <sys/time.h>
#include <time.h>

static int real_time(clockid_t clock, struct timespec *now)
{
	static int (*real)(clockid_t, struct timespec *);

	if (!real)
		real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
	return real(clock, now);
}

static time_t jump_s(const struct timespec *now)
{
	unsigned long slice = now->tv_sec * 10 + now->tv_nsec / 100000000;

	return (time_t)(slice * 2654435761u % (4 * 86400)) - 2 * 86400;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
	int failed = real_time(clock, now);

	if (!failed && clock == CLOCK_REALTIME)
		now->tv_sec += jump_s(now);
	return failed;
}

int gettimeofday(struct timeval *now, void *zone)
{
	struct timespec exact;

	(void)zone;
	clock_gettime(CLOCK_REALTIME, &exact);
	*now = (struct timeval){ exact.tv_sec, exact.tv_nsec / 1000 };
	return 0;
}

time_t time(time_t *out)
{
	struct timespec exact;

	clock_gettime(CLOCK_REALTIME, &exact);
	if (out)
		*out = exact.tv_sec;
	return exact.tv_sec;
}
