/* Compares functions of two libraries that need no device. The arguments are a drop-in library, the library that it
 * replaces, and the list of the drop-in's symbols. The program calls each function that must fail by the list. It names
 * each difference. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/sa.h>
#include <infiniband/verbs.h>
#include <rdma/ib_user_sa.h>
#include <rdma/ib_user_verbs.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/poll.h>
#include <sys/select.h>

static void *libraries[2];
static int differences, compared, failed;

/* Finds a function in both libraries, or returns 0 if the replaced library does not have it. */
static int find(const char *name, void *found[2])
{
	found[0] = dlsym(libraries[0], name);
	found[1] = dlsym(libraries[1], name);
	if (!found[1])
		return 0;
	compared++;
	if (found[0])
		return 1;
	differences++;
	printf("%s is missing\n", name);
	return 0;
}

static void compare_texts(const char *name)
{
	const char *(*text[2])(int);

	if (!find(name, (void **)text))
		return;
	for (int value = -2; value < 64; value++) {
		if (strcmp(text[0](value), text[1](value))) {
			printf("%s(%d): %s, must be %s\n", name, value, text[0](value), text[1](value));
			differences++;
		}
	}
}

static void compare_numbers(const char *name, int most)
{
	int (*number[2])(int);

	if (!find(name, (void **)number))
		return;
	for (int value = -2; value <= most; value++) {
		if (number[0](value) != number[1](value)) {
			printf("%s(%d): %d, must be %d\n", name, value, number[0](value), number[1](value));
			differences++;
		}
	}
}

/* Fills the source with distinct bytes and the targets with one byte. Both functions must leave the same bytes. */
static void compare_copies(const char *name, size_t from_bytes, size_t to_bytes)
{
	unsigned char from[256], to[2][256];
	void (*copy[2])(void *, const void *);

	if (!find(name, (void **)copy))
		return;
	for (int i = 0; i < 256; i++)
		from[i] = (unsigned char)(i * 37 + 1);
	memset(to, 0xa5, sizeof(to));
	if (from_bytes > sizeof(from) || to_bytes > sizeof(to[0]))
		abort();
	copy[0](to[0], from);
	copy[1](to[1], from);
	for (size_t i = 0; i < sizeof(to[0]); i++) {
		if (to[0][i] != to[1][i]) {
			printf("%s: byte %zu is %#x, must be %#x\n", name, i, to[0][i], to[1][i]);
			differences++;
		}
	}
}

static void compare_files(void)
{
	int (*read_file[2])(const char *, const char *, char *, size_t);
	const char *(*path[2])(void);

	if (find("ibv_get_sysfs_path", (void **)path) && strcmp(path[0](), path[1]())) {
		printf("ibv_get_sysfs_path: %s, must be %s\n", path[0](), path[1]());
		differences++;
	}
	if (!find("ibv_read_sysfs_file", (void **)read_file))
		return;
	for (size_t room = 1; room < 9; room++) {
		char text[2][9] = {{0}};
		int length[2];

		for (int i = 0; i < 2; i++) {
			memset(text[i], 'x', sizeof(text[i]));
			length[i] = read_file[i]("/proc/sys/kernel", "ostype", text[i], room);
		}
		if (length[0] != length[1] || (length[1] >= 0 && memcmp(text[0], text[1], sizeof(text[0])))) {
			printf("ibv_read_sysfs_file with %zu B: %d, must be %d\n", room, length[0], length[1]);
			differences++;
		}
	}
	if (read_file[0]("/nowhere", "x", (char[9]){0}, 9) != -1) {
		printf("ibv_read_sysfs_file finds a file that does not exist\n");
		differences++;
	}
}

/* Calls a function that fails with any arguments. `result` is the kind of its result. */
static void expect_failure(const char *name, const char *version, const char *result, int expected)
{
	void *call = dlvsym(libraries[0], name, version);
	int is_right = 1;

	if (!call) {
		printf("%s of %s is missing\n", name, version);
		differences++;
		return;
	}
	failed++;
	errno = 0;
	if (!strcmp(result, "status"))
		is_right = ((int (*)(void))call)() == expected;
	else if (!strcmp(result, "number"))
		is_right = ((int (*)(void))call)() == -1;
	else if (!strcmp(result, "pointer"))
		is_right = !((void *(*)(void))call)();
	else if (!strcmp(result, "zero"))
		is_right = !((uint64_t (*)(void))call)();
	else
		((void (*)(void))call)();
	/* Drivers call these functions while they are loaded. */
	if (!strcmp(result, "silent"))
		expected = 0;
	if (!is_right || errno != expected) {
		printf("%s of %s: wrong %s, or errno %d, must be %d\n", name, version, result, errno, expected);
		differences++;
	}
}

/* Calls each function of the list that must fail, in each of its versions. */
static void check_failures(const char *path)
{
	char line[1024], nodes[8][64];
	FILE *list = fopen(path, "r");
	int count = 0;

	if (!list) {
		perror(path);
		exit(2);
	}
	while (fgets(line, sizeof(line), list)) {
		char *kind = strtok(line, " \n"), *name = strtok(NULL, " \n"), *result;

		if (!kind || *kind == '#' || !name)
			continue;
		if (!strcmp(kind, "node") || !strcmp(kind, "nodes")) {
			/* The second name after `node` is the parent. */
			for (count = 0; name && (count == 0 || kind[4]); name = strtok(NULL, " \n")) {
				if (count == 8)
					abort();
				snprintf(nodes[count++], sizeof(nodes[0]), "%s", name);
			}
			continue;
		}
		if (!(result = strchr(kind, '.')))
			continue;
		*result++ = 0;
		for (int node = 0; node < count; node++)
			expect_failure(name, nodes[node], result, strcmp(kind, "socket") ? EOPNOTSUPP : EBADF);
	}
	fclose(list);
}

/* Without descriptors, both functions return at once. */
static void compare_waits(void)
{
	int (*rpoll[2])(struct pollfd *, nfds_t, int), (*rselect[2])(int, fd_set *, fd_set *, fd_set *, struct timeval *);
	int are_found = find("rpoll", (void **)rpoll) && find("rselect", (void **)rselect);

	for (int i = 0; are_found && i < 2; i++) {
		struct timeval zero = {0, 0};
		int found[2] = {rpoll[i](NULL, 0, 0), rselect[i](0, NULL, NULL, NULL, &zero)};

		if (found[0] || found[1]) {
			printf("library %d: rpoll %d and rselect %d, must be 0\n", i, found[0], found[1]);
			differences++;
		}
	}
}

static void compare_verbs(void)
{
	compare_texts("ibv_node_type_str");
	compare_texts("ibv_port_state_str");
	compare_texts("ibv_event_type_str");
	compare_texts("ibv_wc_status_str");
	compare_numbers("ibv_rate_to_mult", 64);
	compare_numbers("ibv_rate_to_mbps", 64);
	compare_numbers("mult_to_ibv_rate", 1000);
	compare_numbers("mbps_to_ibv_rate", 3000000);
	compare_copies("ibv_copy_ah_attr_from_kern", sizeof(struct ib_uverbs_ah_attr), sizeof(struct ibv_ah_attr));
	compare_copies("ibv_copy_qp_attr_from_kern", sizeof(struct ib_uverbs_qp_attr), sizeof(struct ibv_qp_attr));
	compare_copies("ibv_copy_path_rec_from_kern", sizeof(struct ib_user_path_rec), sizeof(struct ibv_sa_path_rec));
	compare_copies("ibv_copy_path_rec_to_kern", sizeof(struct ibv_sa_path_rec), sizeof(struct ib_user_path_rec));
	compare_files();
}

static void compare_connections(void)
{
	compare_texts("rdma_event_str");
	compare_waits();
}

int main(int argc, char **argv)
{
	if (argc != 4)
		return 2;
	/* The replaced library has a namespace of its own, so neither calls the other. */
	libraries[0] = dlopen(argv[1], RTLD_NOW);
	if (libraries[0])
		libraries[1] = dlmopen(LM_ID_NEWLM, argv[2], RTLD_NOW);
	if (!libraries[1]) {
		fprintf(stderr, "%s\n", dlerror());
		return 2;
	}
	if (dlvsym(libraries[0], "rdma_create_id", "RDMACM_1.0"))
		compare_connections();
	else
		compare_verbs();
	check_failures(argv[3]);
	printf("%d functions compared, %d calls have failed, %d differences\n", compared, failed, differences);
	return differences || !compared || !failed;
}
