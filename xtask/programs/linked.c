/* Prints the number of devices. The test links libibverbs into this program. */
#include <infiniband/verbs.h>
#include <stdio.h>

int main(void)
{
	int count = 0;
	struct ibv_device **devices = ibv_get_device_list(&count);

	printf("%d devices\n", count);
	if (devices)
		ibv_free_device_list(devices);
	return 0;
}
