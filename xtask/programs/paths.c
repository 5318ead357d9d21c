/* Files that programs read without libibverbs: /dev/infiniband, /sys/class/infiniband and related files. The program
 * calls every function of the C library that takes a path, with every error that a path can have. */
#include "paths.h"

/* A null path. `volatile` hides its value from the compiler. */
static void *volatile nothing;

/* This program interposes a function of the C library. The interposed function must get the calls of this program,
 * but no calls of the device. */
static int accesses;

int access(const char *path, int mode)
{
	static int (*real)(const char *, int);
	static __thread int inside;
	int result;

	CHECK(!inside);
	inside = 1;
	if (!real)
		real = (int (*)(const char *, int))dlsym(RTLD_NEXT, "access");
	result = real(path, mode);
	inside = 0;
	accesses++;
	return result;
}

static void opening(void)
{
	int at, root, fd, (*open_2)(const char *, int) = (int (*)(const char *, int))dlsym(RTLD_DEFAULT, "__open_2");
	int (*open64_2)(const char *, int) = (int (*)(const char *, int))dlsym(RTLD_DEFAULT, "__open64_2");
	int (*openat_2)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_DEFAULT, "__openat_2");
	int (*openat64_2)(int, const char *, int) = (int (*)(int, const char *, int))dlsym(RTLD_DEFAULT, "__openat64_2");
	char text[64] = "";
	FILE *file;

	CHECK(is(open(PORT "/state", O_RDONLY), "4: ACTIVE\n"));
	CHECK(is(open64(PORT "/state", O_RDONLY | O_CLOEXEC), "4: ACTIVE\n"));
	CHECK(is(openat(AT_FDCWD, PORT "/phys_state", O_RDONLY), "5: LinkUp\n"));
	CHECK(is(openat64(-1, PORT "/link_layer", O_RDONLY), "Ethernet\n"));
	CHECK(is(open_2(PORT "/rate", O_RDONLY), "100 Gb/sec (4X EDR)\n"));
	CHECK(is(open64_2(PORT "/lid", O_RDONLY), "0x0\n"));
	CHECK(is(openat_2(AT_FDCWD, PORT "/pkeys/0", O_RDONLY), "0xffff\n"));
	CHECK(is(openat64_2(AT_FDCWD, PORT "/gid_attrs/types/0", O_RDONLY), "RoCE v2\n"));
	CHECK(is(open(PORT "/state", O_RDONLY | O_CREAT, 0600), "4: ACTIVE\n"));

	CHECK((file = fopen(DEVICE "/node_type", "re")) && fgets(text, sizeof(text), file) && !strcmp(text, "1: CA\n"));
	CHECK((file = freopen(VERBS "/abi_version", "r", file)) && fgets(text, sizeof(text), file));
	CHECK(!strcmp(text, "6\n") && fclose(file) == 0);
	CHECK((file = fopen64(DEVICE "/node_type", "r")) && (file = freopen64(DEVICE "/fw_ver", "r", file)));
	CHECK((file = freopen(NULL, "r", file)) && fclose(file) == 0);

	/* Paths may start at an open folder, and lead to virtual and to real files. */
	CHECK((at = open(DEVICE, O_RDONLY | O_DIRECTORY)) >= 0 && (root = open("/", O_PATH)) >= 0);
	CHECK(is(openat(at, "ports/1/state", O_RDONLY), "4: ACTIVE\n"));
	CHECK(is(openat(at, "../doorbell0/./node_type", O_RDONLY), "1: CA\n"));
	CHECK(is(openat(at, "../../../../../class/infiniband/doorbell0/node_type", O_RDONLY), "1: CA\n"));
	CHECK(is(openat(root, "sys/class/infiniband/doorbell0/node_type", O_RDONLY), "1: CA\n"));
	CHECK(is(openat(root, "sys/class/infiniband/../infiniband/doorbell0/node_type", O_RDONLY), "1: CA\n"));
	FAILS(openat(at, "../../../../../../../../../../../../../../nothing", O_RDONLY), ENOENT);
	CHECK((fd = openat(at, "../../../../../../../../../../../../../../etc/passwd", O_RDONLY)) >= 0 && close(fd) == 0);
	FAILS(openat(at, "ports/1/state", O_WRONLY), EACCES);
	FAILS(openat(at, "more", O_CREAT | O_WRONLY, 0600), EACCES);
	FAILS(openat(at, "ports/1/states", O_RDONLY), ENOENT);
	close(at);
	close(root);

	/* The errors must be the same as those of Linux. */
	FAILS(open(PORT "/state", O_WRONLY), EACCES);
	FAILS(open(PORT "/state", O_RDWR), EACCES);
	FAILS(open(PORT "/state", O_RDONLY | O_TRUNC), EACCES);
	FAILS(creat(PORT "/state", 0600), EACCES);
	FAILS(creat64(PORT "/more", 0600), EACCES);
	FAILS(open(PORT "/more", O_CREAT | O_RDONLY, 0600), EACCES);
	FAILS(open(PORT "/none/more", O_CREAT | O_RDONLY, 0600), ENOENT);
	FAILS(open(PORT "/state", O_CREAT | O_EXCL | O_RDONLY, 0600), EEXIST);
	FAILS(open(PORT, O_WRONLY), EISDIR);
	FAILS(open(PORT, O_RDONLY | O_CREAT, 0600), EISDIR);
	FAILS(open(PORT, O_TMPFILE | O_WRONLY, 0600), EOPNOTSUPP);
	FAILS(open(PORT "/state", O_RDONLY | O_DIRECTORY), ENOTDIR);
	FAILS(open(PORT "/state/", O_RDONLY), ENOTDIR);
	FAILS(open(PORT "/state/more", O_RDONLY), ENOTDIR);
	FAILS(open(DEVICE, O_RDONLY | O_NOFOLLOW), ELOOP);
	FAILS(open(DEVICE "/device", O_RDONLY | O_DIRECTORY | O_NOFOLLOW), ENOTDIR);
	CHECK((fd = open(DEVICE, O_PATH | O_NOFOLLOW)) >= 0 && close(fd) == 0);
	FAILS(open(CLASS "/none", O_RDONLY), ENOENT);
	FAILS(open(nothing, O_RDONLY), EFAULT);
	FAILS(open("", O_RDONLY), ENOENT);
	FAILS_NULL(fopen(PORT "/state", "w"), EACCES);
	FAILS_NULL(fopen(PORT "/state", "r+"), EACCES);
	FAILS_NULL(fopen(PORT "/more", "a"), EACCES);
	FAILS_NULL(fopen64(PORT "/none", "r"), ENOENT);

	/* A descriptor has the lowest free number, is closed on exec if requested, and can only read. */
	CHECK((fd = dup(0)) >= 0 && close(fd) == 0);
	CHECK((at = open(PORT "/state", O_RDONLY)) == fd && fcntl(at, F_GETFD) == 0);
	CHECK((fcntl(at, F_GETFL) & O_ACCMODE) == O_RDONLY);
	FAILS(write(at, "x", 1), EBADF);
	FAILS(ftruncate(at, 0), EINVAL);
	CHECK(close(at) == 0 && (at = open(PORT, O_RDONLY | O_CLOEXEC)) == fd && fcntl(at, F_GETFD) == FD_CLOEXEC);
	CHECK(close(at) == 0 && (at = open(PORT "/state", O_PATH)) == fd);
	FAILS(read(at, text, 1), EBADF);
	CHECK(close(at) == 0 && (file = fopen(PORT "/state", "re")) && fileno(file) == fd);
	CHECK(fcntl(fd, F_GETFD) == FD_CLOEXEC && fclose(file) == 0);
	CHECK((file = fopen(PORT "/state", "r")) && fcntl(fileno(file), F_GETFD) == 0);
	CHECK((file = freopen(PORT "/rate", "re", file)) && fileno(file) == fd && fgets(text, sizeof(text), file));
	CHECK(!strcmp(text, "100 Gb/sec (4X EDR)\n") && fclose(file) == 0);

	/* Commands of the kernel's uverbs interface on the device node fail. */
	CHECK((fd = open(uverbs, O_RDWR | O_CLOEXEC)) >= 0);
	FAILS(write(fd, text, 8), ENOSPC);
	FAILS(ioctl(fd, 0xc0181b01, text), ENOTTY);
	close(fd);
	CHECK((fd = open("/dev/infiniband/rdma_cm", O_RDWR)) >= 0 && close(fd) == 0);
	FAILS(open(uverbs, O_RDONLY | O_DIRECTORY), ENOTDIR);
}

static void asking(void)
{
	struct stat by_path, by_descriptor;
	struct statx more;
	char real[PATH_MAX], text[64], *made;
	int (*xstat)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__xstat");
	int (*lxstat)(int, const char *, struct stat *) = (int (*)(int, const char *, struct stat *))dlsym(RTLD_DEFAULT, "__lxstat64");
	int (*fxstatat)(int, int, const char *, struct stat *, int) =
		(int (*)(int, int, const char *, struct stat *, int))dlsym(RTLD_DEFAULT, "__fxstatat");
	int (*fxstat)(int, int, struct stat *) = (int (*)(int, int, struct stat *))dlsym(RTLD_DEFAULT, "__fxstat");
	ssize_t (*readlink_chk)(const char *, char *, size_t, size_t) =
		(ssize_t (*)(const char *, char *, size_t, size_t))dlsym(RTLD_DEFAULT, "__readlink_chk");
	ssize_t (*readlinkat_chk)(int, const char *, char *, size_t, size_t) =
		(ssize_t (*)(int, const char *, char *, size_t, size_t))dlsym(RTLD_DEFAULT, "__readlinkat_chk");
	char *(*realpath_chk)(const char *, char *, size_t) =
		(char *(*)(const char *, char *, size_t))dlsym(RTLD_DEFAULT, "__realpath_chk");
	int fd, at, before;

	CHECK(stat(uverbs, &by_path) == 0 && S_ISCHR(by_path.st_mode) && major(by_path.st_rdev) == 231);
	CHECK(lstat(uverbs, &by_path) == 0 && S_ISCHR(by_path.st_mode) && (by_path.st_mode & 07777) == 0666);
	CHECK(lstat(DEVICE, &by_path) == 0 && S_ISLNK(by_path.st_mode));
	CHECK(lstat64(DEVICE "/", (struct stat64 *)&by_path) == 0 && S_ISDIR(by_path.st_mode));
	CHECK(stat64(PORT "/state", (struct stat64 *)&by_path) == 0 && by_path.st_mode == (S_IFREG | 0444));
	CHECK(by_path.st_size == 4096 && by_path.st_uid == 0);
	CHECK(xstat(1, PORT, &by_path) == 0 && S_ISDIR(by_path.st_mode));
	CHECK(lxstat(1, DEVICE "/device", &by_path) == 0 && S_ISLNK(by_path.st_mode));
	CHECK(fxstatat(1, AT_FDCWD, DEVICE "/device", &by_path, 0) == 0 && S_ISDIR(by_path.st_mode));
	CHECK(statx(AT_FDCWD, uverbs, 0, STATX_BASIC_STATS, &more) == 0 && S_ISCHR(more.stx_mode));
	CHECK(more.stx_rdev_major == 231 && more.stx_rdev_minor >= 192);
	CHECK((fd = open(DEVICE "/device", O_PATH | O_NOFOLLOW)) >= 0);
	CHECK(fstat(fd, &by_descriptor) == 0 && S_ISLNK(by_descriptor.st_mode));
	CHECK(readlinkat(fd, "", real, sizeof(real)) == 19 && !memcmp(real, "../../../doorbell.0", 19));
	FAILS(openat(fd, "uevent", O_RDONLY), ENOTDIR);
	close(fd);
	/* Some programs compare the status of a path with the status of the opened file. */
	CHECK((fd = open(PORT "/state", O_RDONLY)) >= 0 && fstat(fd, &by_descriptor) == 0 && stat(PORT "/state", &by_path) == 0);
	CHECK(by_path.st_ino == by_descriptor.st_ino && by_path.st_dev == by_descriptor.st_dev);
	CHECK(by_path.st_mode == by_descriptor.st_mode && by_descriptor.st_nlink == 1 && by_descriptor.st_size == 10);
	CHECK(statx(fd, "", AT_EMPTY_PATH, STATX_BASIC_STATS, &more) == 0 && more.stx_ino == by_path.st_ino);
	CHECK(more.stx_nlink == 1 && more.stx_size == 10 && by_descriptor.st_blocks > 0);
	close(fd);
	CHECK(stat(PORT "/gid_attrs", &by_path) == 0 && by_path.st_nlink == 4);
	CHECK((fd = open(PORT, O_RDONLY | O_DIRECTORY)) >= 0 && fstat(fd, &by_descriptor) == 0);
	CHECK(fstatat(AT_FDCWD, PORT, &by_path, 0) == 0);
	CHECK(by_path.st_ino == by_descriptor.st_ino && by_path.st_dev == by_descriptor.st_dev);
	CHECK(by_path.st_mode == (S_IFDIR | 0755) && by_descriptor.st_mode == by_path.st_mode);
	CHECK(fstatat(fd, "", &by_path, AT_EMPTY_PATH) == 0 && !memcmp(&by_path, &by_descriptor, sizeof(by_path)));
	CHECK(fxstat(1, fd, &by_path) == 0 && !memcmp(&by_path, &by_descriptor, sizeof(by_path)));
	CHECK(fstatat64(fd, "state", (struct stat64 *)&by_path, AT_SYMLINK_NOFOLLOW) == 0 && by_path.st_size == 4096);
	CHECK((at = open("/dev/infiniband", O_RDONLY)) >= 0);
	CHECK(fstatat(at, node, &by_path, AT_SYMLINK_NOFOLLOW) == 0 && S_ISCHR(by_path.st_mode));
	FAILS(stat(PORT "/state", nothing), EFAULT);
	FAILS(stat(PORT "/none", &by_path), ENOENT);
	FAILS(stat(PORT "/state/..", &by_path), ENOTDIR);
	FAILS(lstat(CLASS "/none/..", &by_path), ENOENT);

	before = accesses;
	CHECK(access(uverbs, R_OK | W_OK) == 0 && accesses == before + 1);
	FAILS(access(uverbs, X_OK), EACCES);
	CHECK(access(PORT "/state", R_OK) == 0 && access(PORT, R_OK | X_OK) == 0 && access(CLASS, F_OK) == 0);
	FAILS(access(PORT "/state", X_OK), EACCES);
	FAILS(access(PORT "/state", 64), EINVAL);
	CHECK(eaccess(PORT "/state", R_OK) == 0 && euidaccess(DEVICE, X_OK) == 0);
	CHECK(faccessat(fd, "state", R_OK, AT_EACCESS) == 0 && faccessat(AT_FDCWD, DEVICE, F_OK, AT_SYMLINK_NOFOLLOW) == 0);
	FAILS(faccessat(fd, "none", F_OK, 0), ENOENT);
	FAILS(getxattr(PORT "/state", "user.x", text, sizeof(text)), ENODATA);
	FAILS(lgetxattr(DEVICE, "security.selinux", text, sizeof(text)), ENODATA);
	CHECK(listxattr(PORT, text, sizeof(text)) == 0 && llistxattr(DEVICE, text, sizeof(text)) == 0);

	CHECK(readlink(DEVICE "/device", real, sizeof(real)) == 19 && !memcmp(real, "../../../doorbell.0", 19));
	CHECK(readlinkat(AT_FDCWD, DEVICE "/device", real, 5) == 5 && !memcmp(real, "../..", 5));
	CHECK(readlink_chk(DEVICE, real, sizeof(real), sizeof(real)) > 0);
	CHECK(readlinkat_chk(AT_FDCWD, VERBS "/..//infiniband_verbs/../infiniband/doorbell0", real, 9, sizeof(real)) == 9);
	FAILS(readlink(PORT, real, sizeof(real)), EINVAL);
	FAILS(readlink(DEVICE, real, 0), EINVAL);
	FAILS(readlink(DEVICE, nothing, 9), EFAULT);
	FAILS(readlink(PORT "/none", real, sizeof(real)), ENOENT);

	CHECK(realpath(DEVICE "/device", real) == real && !strcmp(real, PARENT));
	CHECK((made = realpath(PORT "/../../device//infiniband/doorbell0/subsystem/", NULL)) && !strcmp(made, CLASS));
	free(made);
	CHECK((made = canonicalize_file_name(DEVICE)) && !strcmp(made, REAL));
	free(made);
	CHECK(realpath_chk(uverbs, real, sizeof(real)) && !strcmp(real, uverbs));
	CHECK(realpath(CLASS "/..", real) || errno == ENOENT);
	FAILS_NULL(realpath(PORT "/none", real), ENOENT);
	FAILS_NULL(realpath(PORT "/state/", real), ENOTDIR);
	FAILS_NULL(realpath(nothing, real), EINVAL);
	close(fd);
	close(at);
}

/* All functions list each entry of a folder once, in the same order. Inode and type of an entry match its status. */
static void reading(void)
{
	struct dirent *entry, copy, *copied;
	struct dirent64 copy64, *copied64;
	struct stat status;
	char names[64][64], buffer[512];
	int fd, all, at, seen = 0;
	long middle = 0, length;
	DIR *listed;

	CHECK((listed = opendir(PORT)));
	for (all = 0; (entry = readdir(listed)); all++) {
		CHECK(all < 64 && strlen(entry->d_name) < sizeof(names[0]));
		strcpy(names[all], entry->d_name);
		CHECK(fstatat(dirfd(listed), entry->d_name, &status, AT_SYMLINK_NOFOLLOW) == 0);
		CHECK(entry->d_type == IFTODT(status.st_mode));
		CHECK(entry->d_ino == status.st_ino || !strcmp(entry->d_name, ".."));
		if (all == 4)
			middle = telldir(listed);
	}
	CHECK(all > 12 && !strcmp(names[0], ".") && !strcmp(names[1], "..") && !readdir(listed));
	seekdir(listed, middle);
	CHECK((entry = readdir(listed)) && !strcmp(entry->d_name, names[5]));
	rewinddir(listed);
	for (at = 0; at < all; at++) {
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
		if (at % 3 == 0) {
			CHECK(readdir_r(listed, &copy, &copied) == 0 && copied == &copy && !strcmp(copy.d_name, names[at]));
		} else if (at % 3 == 1) {
			CHECK(readdir64_r(listed, &copy64, &copied64) == 0 && !strcmp(copied64->d_name, names[at]));
		} else {
			CHECK((copied64 = readdir64(listed)) && !strcmp(copied64->d_name, names[at]));
		}
	}
	CHECK(readdir_r(listed, &copy, &copied) == 0 && !copied);
#pragma GCC diagnostic pop
	CHECK(closedir(listed) == 0);

	CHECK((fd = open(PORT, O_RDONLY | O_DIRECTORY)) >= 0);
	while ((length = getdents64(fd, buffer, sizeof(buffer))) > 0) {
		for (at = 0; at < length; at += ((struct dirent64 *)(buffer + at))->d_reclen)
			CHECK(!strcmp(((struct dirent64 *)(buffer + at))->d_name, names[seen++]));
	}
	CHECK(length == 0 && seen == all && lseek(fd, 0, SEEK_SET) == 0);
	FAILS(getdents64(fd, buffer, 8), EINVAL);
	close(fd);
	/* A DIR of a real folder works, although a DIR of a virtual folder had the same address before. */
	CHECK((listed = opendir("/")) && count(listed, "etc") == 1);
}

static void listing(void)
{
	struct dirent **found;
	struct dirent64 **found64;
	char here[PATH_MAX], *name;
	glob_t matched;
	int fd;
	DIR *open_folder;

	CHECK(count(opendir(CLASS), "doorbell0") == 1);
	CHECK(count(opendir(VERBS "/"), node) == 1 && count(opendir(VERBS), "abi_version") == 1);
	CHECK(count(opendir("/dev/infiniband"), node) == 1);
	CHECK(count(opendir(PORT "/gids"), NULL) == 1);
	CHECK((fd = open(PORT, O_RDONLY)) >= 0 && count(fdopendir(fd), "counters") == 1);
	CHECK((open_folder = opendir(PORT "/counters")));
	CHECK(is(openat(dirfd(open_folder), "symbol_error", O_RDONLY), "0\n") && closedir(open_folder) == 0);
	FAILS_NULL(opendir(PORT "/state"), ENOTDIR);
	FAILS_NULL(opendir(PORT "/none"), ENOENT);
	CHECK(scandir(DEVICE "/ports", &found, only_digits, alphasort) == 1 && !strcmp(found[0]->d_name, "1"));
	free(found[0]);
	free(found);
	CHECK(scandir64(DEVICE, &found64, NULL, NULL) > 5);
	CHECK((fd = open(DEVICE, O_RDONLY)) >= 0 && scandirat(fd, "ports", &found, only_digits, NULL) == 1);
	close(fd);
	FAILS(scandir(PORT "/none", &found, NULL, NULL), ENOENT);
	CHECK(glob(CLASS "/*/ports/*/stat[e]", 0, NULL, &matched) == 0 && matched.gl_pathc == 1);
	CHECK(!strcmp(matched.gl_pathv[0], PORT "/state"));
	CHECK(glob("/dev/infiniband/uverbs*", GLOB_APPEND, NULL, &matched) == 0 && matched.gl_pathc >= 2);
	globfree(&matched);
	CHECK(glob64(DEVICE "/none*", 0, NULL, (glob64_t *)&matched) == GLOB_NOMATCH);

	reading();

	/* The working folder has the virtual path. */
	CHECK(chdir(DEVICE "/ports/..") == 0 && getcwd(here, sizeof(here)) && !strcmp(here, REAL));
	CHECK((name = get_current_dir_name()) && !strcmp(name, REAL));
	free(name);
	CHECK(is(open("ports/1/state", O_RDONLY), "4: ACTIVE\n") && is(open("node_type", O_RDONLY), "1: CA\n"));
	CHECK(realpath(".", here) && !strcmp(here, REAL) && realpath("device", here) && !strcmp(here, PARENT));
	CHECK(is(open("../../../../../class/infiniband/doorbell0/node_type", O_RDONLY), "1: CA\n"));
	FAILS(open("node_type", O_WRONLY), EACCES);
	FAILS(chdir("node_type"), ENOTDIR);
	CHECK(count(opendir("."), "ports") == 1 && count(opendir("ports"), "1") == 1 && count(opendir(".."), "doorbell0") == 1);
	FAILS_NULL(getcwd(here, 9), ERANGE);
	CHECK((name = getcwd(NULL, 0)) && !strcmp(name, REAL));
	free(name);
	FAILS(mkdir("more", 0700), ENOENT);
	CHECK(chdir("/") == 0 && is(open("sys/class/infiniband/doorbell0/node_type", O_RDONLY), "1: CA\n"));
	/* A child that runs another program in a virtual working folder also sees the files. */
	IN_CHILD(CHECK(chdir(PORT) == 0); execl("/bin/sh", "sh", "-c", "read a < state && test \"$a\" = '4: ACTIVE' && "
		 "test \"`pwd -P`\" = " REAL "/ports/1 && ls ../../node_type > /dev/null && test `ls | wc -l` -gt 10", (char *)NULL));
}

/* Paths and names that are too long. */
static void lengths(void)
{
	static char path[3 * PATH_MAX];
	struct stat status;

	memset(path, 'x', sizeof(path) - 1);
	memcpy(path, CLASS "/", sizeof(CLASS));
	FAILS(open(path, O_RDONLY), ENAMETOOLONG);
	FAILS(stat(path, &status), ENAMETOOLONG);
	FAILS_NULL(opendir(path), ENAMETOOLONG);
	path[sizeof(CLASS) + 256] = 0;
	FAILS(access(path, F_OK), ENAMETOOLONG);
	memset(path, '/', PATH_MAX - 1);
	path[PATH_MAX - 1] = 0;
	memcpy(path + PATH_MAX - sizeof(PORT "/state"), PORT "/state", sizeof(PORT "/state"));
	CHECK(is(open(path, O_RDONLY), "4: ACTIVE\n"));
	memmove(path + 1, path, PATH_MAX);
	FAILS(open(path, O_RDONLY), ENAMETOOLONG);
}

/* Counters include each completed message at once. */
static void counting(void)
{
	static char memory[4096];
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
	struct ibv_mr *mr;
	unsigned long long before, words, packets;
	char guid[64], shown[64];
	uint8_t *raw = gid.raw;
	int i, held;

	CHECK((cq = ibv_create_cq(context, 64, NULL, NULL, 0)));
	CHECK((mr = ibv_reg_mr(pd, memory, sizeof(memory), IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
	a = create_qp(cq, NULL, IBV_QPT_RC, 16);
	b = create_qp(cq, NULL, IBV_QPT_RC, 16);
	connect_pair(a, b);
	before = counter("counters/port_xmit_packets");
	words = counter("counters/port_xmit_data");
	CHECK((held = open(PORT "/hw_counters/tx_data_packets", O_RDONLY)) >= 0);
	packets = counter("hw_counters/tx_data_packets");
	for (i = 0; i < 10; i++) {
		CHECK(post(a, IBV_WR_RDMA_WRITE, i, mr, memory, 1024, mr, memory + 2048) == 0);
		CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
		CHECK(counter("hw_counters/tx_data_packets") >= (unsigned)i + 1);
	}
	CHECK(counter("counters/port_xmit_packets") >= before + 10);
	CHECK(counter("counters/port_xmit_data") >= words + 10 * 1024 / 4);
	/* An open file has the values of the time when it was opened. */
	CHECK(strtoull(content_of(held), NULL, 10) == packets);

	snprintf(guid, sizeof(guid), "%04x:%04x:%04x:%04x:%04x:%04x:%04x:%04x\n", raw[0] << 8 | raw[1], raw[2] << 8 | raw[3],
		 raw[4] << 8 | raw[5], raw[6] << 8 | raw[7], raw[8] << 8 | raw[9], raw[10] << 8 | raw[11],
		 raw[12] << 8 | raw[13], raw[14] << 8 | raw[15]);
	CHECK(!strcmp(content(PORT "/gids/0"), guid));
	raw = (uint8_t *)&(uint64_t){ ibv_get_device_guid(devices[0]) };
	snprintf(shown, sizeof(shown), "%02x%02x:%02x%02x:%02x%02x:%02x%02x\n", raw[0], raw[1], raw[2], raw[3], raw[4], raw[5],
		 raw[6], raw[7]);
	CHECK(!strcmp(content(DEVICE "/node_guid"), shown));
	CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0 && ibv_dereg_mr(mr) == 0 && ibv_destroy_cq(cq) == 0);
	/* Counters keep their values when the device is closed. */
	before = counter("counters/port_xmit_packets");
	close_device();
	CHECK(counter("counters/port_xmit_packets") == before);
	open_device();
	CHECK(counter("counters/port_xmit_packets") == before);
}

int main(int argc, char **argv)
{
	(void)argc;
	begin(argv[0]);
	open_and_name();
	CHECK(!strcmp(devices[0]->ibdev_path, DEVICE) && !strncmp(devices[0]->dev_path, VERBS "/uverbs", sizeof(VERBS "/uverbs") - 1));
	CHECK(!strcmp(strrchr(devices[0]->dev_path, '/') + 1, node));
	opening();
	asking();
	listing();
	lengths();
	counting();
	finish();
	return 0;
}
