/* A program that opens libibverbs itself, and needs no header of rdma-core. It prints the names of the devices, and the
 * files that it has mapped. */
#include <dlfcn.h>
#include <stdio.h>

int main(void)
{
	void *library = dlopen("libibverbs.so.1", RTLD_NOW);
	void **(*get_device_list)(int *);
	const char *(*get_device_name)(void *);
	void **devices;
	int count = 0, byte;
	FILE *maps;

	if (!library) {
		fprintf(stderr, "dlopen: %s\n", dlerror());
		return 1;
	}
	get_device_list = (void **(*)(int *))dlsym(library, "ibv_get_device_list");
	get_device_name = (const char *(*)(void *))dlsym(library, "ibv_get_device_name");
	if (!get_device_list || !get_device_name) {
		fprintf(stderr, "dlsym: %s\n", dlerror());
		return 1;
	}
	devices = get_device_list(&count);
	for (int i = 0; devices && i < count; i++)
		printf("%s\n", get_device_name(devices[i]));
	maps = fopen("/proc/self/maps", "r");
	if (!maps) {
		perror("/proc/self/maps");
		return 1;
	}
	while ((byte = getc(maps)) != EOF)
		putchar(byte);
	return 0;
}
