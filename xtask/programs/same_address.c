/* Lists of devices that cannot be used as requested: an address that another process has, and a number of devices that
 * is not allowed. Run with two devices and an address for each. */
#include "common.h"

#include <rdma/rdma_cma.h>
#include <sys/stat.h>
#include <sys/wait.h>

/* The list is refused, and no file shows a device. */
static int refused(void)
{
	struct stat status;

	CHECK(!ibv_get_device_list(NULL) && errno == EINVAL);
	CHECK(!rdma_get_devices(NULL) && errno == EINVAL);
	CHECK(stat("/sys/class/infiniband/doorbell0", &status) == -1 && errno == ENOENT);
	return 0;
}

static void expect_address(struct ibv_context *opened, uint8_t last)
{
	union ibv_gid own;

	CHECK(ibv_query_gid(opened, 1, 0, &own) == 0 && own.raw[15] == last);
}

int main(int count, char **words)
{
	struct ibv_context *first, *second;
	pid_t child;
	int status;

	if (count > 1)
		return refused();
	CHECK((devices = ibv_get_device_list(NULL)) && devices[0] && devices[1] && !devices[2]);
	CHECK((first = ibv_open_device(devices[0])));
	expect_address(first, 1);
	CHECK((child = fork()) >= 0);
	if (child == 0) {
		/* The parent has the address of the first device. The second device works. */
		CHECK(!ibv_open_device(devices[0]) && errno == ENODEV);
		CHECK((second = ibv_open_device(devices[1])));
		expect_address(second, 2);
		CHECK(ibv_close_device(second) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
	CHECK((pd = ibv_alloc_pd(first)) && ibv_dealloc_pd(pd) == 0);
	CHECK((second = ibv_open_device(devices[1])));
	expect_address(second, 2);
	CHECK(ibv_close_device(second) == 0 && ibv_close_device(first) == 0);
	ibv_free_device_list(devices);
	CHECK(setenv("DOORBELL_DEVICES", "0", 1) == 0);
	execl(words[0], words[0], "refused", (char *)NULL);
	CHECK(!"the program could not be started again");
}
