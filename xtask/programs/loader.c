/* A program that opens libibverbs itself, as NCCL does: by `dlopen`, first under the name of the development package,
 * and with `dlvsym` for each function. Functions of newer versions are optional. The program then writes between two
 * queue pairs and compares the bytes. It also opens librdmacm.
 *
 * Arguments: `shared` if the preloaded library must be the same as the opened one. `alone` if no library is preloaded.
 * `old` if the optional functions count as absent. `killed` if the second queue pair is in a process that gets killed.
 * `none`, or the path of a library, if no device must be found. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                          \
	do {                                                              \
		if (!(x)) {                                               \
			fprintf(stderr, "%s:%d: %s\n", __FILE__, __LINE__, #x); \
			exit(1);                                          \
		}                                                         \
	} while (0)

/* Bytes of a WRITE, WRITEs at once, and rounds of them. */
#define BYTES 65536
#define PARTS 8
#define ROUNDS 20
#define MEMORY (PARTS * BYTES)

/* Time limit for the error of a dead peer. All retries take 2 seconds. */
#define DEATH_S 30
/* Time after which the program counts as hanging. It takes a fraction of a second. */
#define PATIENCE_S 90

static char from[MEMORY], to[MEMORY];

#undef ibv_reg_mr
#undef ibv_query_port

static struct {
	struct ibv_device **(*get_device_list)(int *);
	void (*free_device_list)(struct ibv_device **);
	const char *(*get_device_name)(struct ibv_device *);
	struct ibv_context *(*open_device)(struct ibv_device *);
	int (*close_device)(struct ibv_context *);
	int (*get_async_event)(struct ibv_context *, struct ibv_async_event *);
	void (*ack_async_event)(struct ibv_async_event *);
	int (*query_device)(struct ibv_context *, struct ibv_device_attr *);
	int (*query_port)(struct ibv_context *, uint8_t, struct ibv_port_attr *);
	int (*query_gid)(struct ibv_context *, uint8_t, int, union ibv_gid *);
	int (*query_qp)(struct ibv_qp *, struct ibv_qp_attr *, int, struct ibv_qp_init_attr *);
	struct ibv_pd *(*alloc_pd)(struct ibv_context *);
	int (*dealloc_pd)(struct ibv_pd *);
	struct ibv_mr *(*reg_mr)(struct ibv_pd *, void *, size_t, int);
	struct ibv_mr *(*reg_mr_iova2)(struct ibv_pd *, void *, size_t, uint64_t, unsigned int);
	struct ibv_mr *(*reg_dmabuf_mr)(struct ibv_pd *, uint64_t, size_t, uint64_t, int, int);
	int (*dereg_mr)(struct ibv_mr *);
	struct ibv_cq *(*create_cq)(struct ibv_context *, int, void *, struct ibv_comp_channel *, int);
	int (*destroy_cq)(struct ibv_cq *);
	struct ibv_qp *(*create_qp)(struct ibv_pd *, struct ibv_qp_init_attr *);
	int (*modify_qp)(struct ibv_qp *, struct ibv_qp_attr *, int);
	int (*destroy_qp)(struct ibv_qp *);
	int (*fork_init)(void);
	const char *(*event_type_str)(enum ibv_event_type);
	int (*query_ece)(struct ibv_qp *, struct ibv_ece *);
	int (*set_ece)(struct ibv_qp *, struct ibv_ece *);
} verbs;

static void *look_up(void *library, const char *name, const char *version)
{
	void *found = dlvsym(library, name, version);

	if (!found)
		fprintf(stderr, "dlvsym: %s\n", dlerror());
	CHECK(found);
	return found;
}

/* Looks up the functions in NCCL's order. */
static void look_up_all(void *library, int without_optional)
{
#define NEEDED(function) verbs.function = look_up(library, "ibv_" #function, "IBVERBS_1.1")
#define OPTIONAL(function, version) \
	verbs.function = without_optional ? NULL : dlvsym(library, "ibv_" #function, version)
	NEEDED(get_device_list);
	NEEDED(free_device_list);
	NEEDED(get_device_name);
	NEEDED(open_device);
	NEEDED(close_device);
	NEEDED(get_async_event);
	NEEDED(ack_async_event);
	NEEDED(query_device);
	NEEDED(query_port);
	NEEDED(query_gid);
	NEEDED(query_qp);
	NEEDED(alloc_pd);
	NEEDED(dealloc_pd);
	NEEDED(reg_mr);
	OPTIONAL(reg_mr_iova2, "IBVERBS_1.8");
	OPTIONAL(reg_dmabuf_mr, "IBVERBS_1.12");
	NEEDED(dereg_mr);
	NEEDED(create_cq);
	NEEDED(destroy_cq);
	NEEDED(create_qp);
	NEEDED(modify_qp);
	NEEDED(destroy_qp);
	NEEDED(fork_init);
	NEEDED(event_type_str);
	OPTIONAL(query_ece, "IBVERBS_1.10");
	OPTIONAL(set_ece, "IBVERBS_1.10");
}

/* A version that does not exist has no functions, and the first version fails without harm. */
static void check_other_versions(void *library)
{
	struct ibv_context *(*first)(struct ibv_device *);

	CHECK(!dlvsym(library, "ibv_open_device", "IBVERBS_9.9") && dlerror());
	CHECK(!dlvsym(library, "ibv_reg_dmabuf_mr", "IBVERBS_1.1") && dlerror());
	CHECK(!dlsym(library, "ibv_no_such_function") && dlerror());
	CHECK((first = dlvsym(library, "ibv_open_device", "IBVERBS_1.0")) && !first(NULL));
}

/* The end of a queue pair. */
struct end {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_qp *qp;
	struct ibv_port_attr port;
	union ibv_gid gid;
};

static void open_end(struct end *end, struct ibv_device *device)
{
	struct ibv_device_attr about;

	CHECK((end->context = verbs.open_device(device)));
	CHECK(!verbs.query_device(end->context, &about) && about.max_qp > 0);
	CHECK(!verbs.query_port(end->context, 1, &end->port) && end->port.state == IBV_PORT_ACTIVE);
	CHECK(!verbs.query_gid(end->context, 1, 0, &end->gid));
	CHECK((end->pd = verbs.alloc_pd(end->context)));
	CHECK((end->cq = verbs.create_cq(end->context, 2 * PARTS, NULL, NULL, 0)));
}

static void close_end(struct end *end)
{
	CHECK(!verbs.destroy_cq(end->cq) && !verbs.dealloc_pd(end->pd) && !verbs.close_device(end->context));
}

static struct ibv_qp *create_qp(struct end *end)
{
	struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .send_cq = end->cq, .recv_cq = end->cq};
	struct ibv_qp *qp;

	init.cap = (struct ibv_qp_cap){.max_send_wr = PARTS, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1};
	CHECK((qp = verbs.create_qp(end->pd, &init)));
	if (verbs.query_ece) {
		struct ibv_ece ece = {0};

		CHECK(verbs.query_ece(qp, &ece) == EOPNOTSUPP && verbs.set_ece(qp, &ece) == EOPNOTSUPP);
	}
	return qp;
}

static struct ibv_mr *reg(struct ibv_pd *pd, void *memory)
{
	int access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE;

	if (verbs.reg_mr_iova2)
		return verbs.reg_mr_iova2(pd, memory, MEMORY, (uintptr_t)memory, access | IBV_ACCESS_RELAXED_ORDERING);
	return verbs.reg_mr(pd, memory, MEMORY, access);
}

static void connect_to(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid, const struct ibv_port_attr *port)
{
	struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1};

	attr.qp_access_flags = IBV_ACCESS_REMOTE_WRITE;
	CHECK(!verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = port->active_mtu, .dest_qp_num = peer};
	attr.max_dest_rd_atomic = 1;
	attr.min_rnr_timer = 12;
	attr.ah_attr.is_global = 1;
	attr.ah_attr.grh.dgid = *gid;
	attr.ah_attr.grh.hop_limit = 255;
	attr.ah_attr.port_num = 1;
	CHECK(!verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
						  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	/* NCCL_IB_TIMEOUT=14 is 67 ms, so neither a lost packet nor a dead peer takes long. */
	attr = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7};
	attr.max_rd_atomic = 1;
	CHECK(!verbs.modify_qp(qp, &attr, IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY |
						  IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC));
}

/* Fills memory with bytes that differ for each seed. */
static void fill(char *memory, int seed)
{
	for (int i = 0; i < MEMORY; i++)
		memory[i] = (char)(i * 7 + i / 251 + seed * 13);
}

/* Posts one WRITE for each part of the memory, and waits for all of them. Returns the status of the first one that
 * fails. */
static enum ibv_wc_status write_parts(struct ibv_qp *qp, struct ibv_mr *source, uint64_t target, uint32_t rkey)
{
	enum ibv_wc_status status = IBV_WC_SUCCESS;
	struct ibv_wc wc;
	int found;

	for (int part = 0; part < PARTS; part++) {
		struct ibv_send_wr wr = {.opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED, .num_sge = 1}, *bad;
		uint64_t offset = (uint64_t)part * BYTES;
		struct ibv_sge sge = {.addr = (uintptr_t)from + offset, .length = BYTES, .lkey = source->lkey};

		wr.sg_list = &sge;
		wr.wr.rdma.remote_addr = target + offset;
		wr.wr.rdma.rkey = rkey;
		CHECK(!ibv_post_send(qp, &wr, &bad));
	}
	for (int left = PARTS; left > 0; left -= found) {
		found = ibv_poll_cq(qp->send_cq, 1, &wc);
		CHECK(found >= 0);
		if (found && status == IBV_WC_SUCCESS)
			status = wc.status;
	}
	return status;
}

static void write_and_compare(struct ibv_device *device)
{
	struct ibv_mr *source, *target;
	struct ibv_qp *a, *b;
	struct end end;

	open_end(&end, device);
	a = create_qp(&end);
	b = create_qp(&end);
	connect_to(a, b->qp_num, &end.gid, &end.port);
	connect_to(b, a->qp_num, &end.gid, &end.port);
	CHECK((source = reg(end.pd, from)) && (target = reg(end.pd, to)));
	for (int round = 0; round < ROUNDS; round++) {
		fill(from, round);
		memset(to, 0, MEMORY);
		CHECK(write_parts(a, source, (uintptr_t)to, target->rkey) == IBV_WC_SUCCESS);
		CHECK(!memcmp(from, to, MEMORY));
	}
	CHECK(!verbs.dereg_mr(source) && !verbs.dereg_mr(target) && !verbs.destroy_qp(a) && !verbs.destroy_qp(b));
	close_end(&end);
}

/* Description of an end for its peer in another process. It has no padding. */
struct description {
	union ibv_gid gid;
	uint64_t address;
	uint32_t qpn, rkey;
};

/* Writes to the memory of the child until the child is dead. The child compares the bytes of the rounds before. */
static void until_killed(struct ibv_device *device, pid_t child, int link)
{
	struct description own = {0}, other;
	struct ibv_mr *source, *target;
	struct end end;
	struct ibv_qp *qp;
	time_t begun;
	char byte = 0;

	open_end(&end, device);
	qp = create_qp(&end);
	CHECK((source = reg(end.pd, from)) && (target = reg(end.pd, to)));
	own = (struct description){end.gid, (uintptr_t)to, qp->qp_num, target->rkey};
	CHECK(write(link, &own, sizeof(own)) == sizeof(own) && read(link, &other, sizeof(other)) == sizeof(other));
	connect_to(qp, other.qpn, &other.gid, &end.port);
	CHECK(write(link, &byte, 1) == 1 && read(link, &byte, 1) == 1);
	for (int round = 0; round < ROUNDS; round++) {
		fill(from, round);
		if (child) {
			CHECK(write_parts(qp, source, other.address, other.rkey) == IBV_WC_SUCCESS);
			CHECK(write(link, &byte, 1) == 1 && read(link, &byte, 1) == 1);
		} else {
			CHECK(read(link, &byte, 1) == 1 && !memcmp(from, to, MEMORY));
			CHECK(write(link, &byte, 1) == 1);
		}
	}
	if (!child)
		/* The read ends only if the parent ends first. */
		exit(read(link, &byte, 1) != 0);
	CHECK(!kill(child, SIGKILL) && waitpid(child, NULL, 0) == child);
	begun = time(NULL);
	CHECK(write_parts(qp, source, other.address, other.rkey) == IBV_WC_RETRY_EXC_ERR);
	CHECK(time(NULL) - begun < DEATH_S);
	CHECK(!verbs.dereg_mr(source) && !verbs.dereg_mr(target) && !verbs.destroy_qp(qp));
	close_end(&end);
}

/* librdmacm names the same device. */
static void check_rdmacm(struct ibv_device *device)
{
	void *library = dlopen("librdmacm.so.1", RTLD_NOW);
	struct ibv_context **(*get_devices)(int *);
	void (*free_devices)(struct ibv_context **);
	struct ibv_context **contexts;
	int count = -1;

	if (!library)
		fprintf(stderr, "dlopen: %s\n", dlerror());
	CHECK(library);
	get_devices = look_up(library, "rdma_get_devices", "RDMACM_1.0");
	free_devices = look_up(library, "rdma_free_devices", "RDMACM_1.0");
	CHECK((contexts = get_devices(&count)) && count == 1 && contexts[0]->device == device && !contexts[1]);
	free_devices(contexts);
	/* The device stays open until the process ends. */
	CHECK(!dlclose(library));
}

int main(int argc, char **argv)
{
	const char *kind = argc > 1 ? argv[1] : "shared";
	struct ibv_device **(*by_name)(int *) = dlsym(RTLD_DEFAULT, "ibv_get_device_list");
	struct ibv_device **devices, **others, *device;
	void *library = NULL;
	int is_elsewhere = strchr(kind, '/') || !strcmp(kind, "none"), is_killed = !strcmp(kind, "killed");
	int count = -1, links[2];
	pid_t child = 0;

	/* Neither process has the library open yet. */
	if (is_killed) {
		CHECK(!socketpair(AF_UNIX, SOCK_STREAM, 0, links));
		CHECK((child = fork()) >= 0);
		close(links[!child]);
	}
	/* A drop-in that jumps to itself never returns. */
	alarm(PATIENCE_S);
	if (strchr(kind, '/')) {
		CHECK((library = dlopen(kind, RTLD_NOW)));
	} else {
		library = dlopen("libibverbs.so", RTLD_NOW);
		if (!library)
			library = dlopen("libibverbs.so.1", RTLD_NOW);
	}
	if (!library)
		fprintf(stderr, "dlopen: %s\n", dlerror());
	CHECK(library);
	look_up_all(library, !strcmp(kind, "old"));
	verbs.fork_init();
	devices = verbs.get_device_list(&count);
	if (is_elsewhere) {
		printf("%d devices\n", count);
		CHECK(count <= 0);
		return 0;
	}
	CHECK(devices && count >= 1 && !strcmp(verbs.get_device_name(devices[0]), "doorbell0"));
	CHECK(!strcmp(verbs.event_type_str(IBV_EVENT_PORT_ERR), "port error"));
	if (strcmp(kind, "alone")) {
		/* Both libraries name the same device, not one each. */
		CHECK(by_name && (others = by_name(NULL)) && others[0] == devices[0]);
		verbs.free_device_list(others);
	} else {
		CHECK(!by_name);
	}
	check_other_versions(library);
	check_rdmacm(devices[0]);
	if (is_killed)
		until_killed(devices[0], child, links[!!child]);
	else
		write_and_compare(devices[0]);
	device = devices[0];
	verbs.free_device_list(devices);
	if (!strcmp(kind, "alone")) {
		/* Threads of the library outlive its handle. */
		CHECK(!dlclose(library) && (library = dlopen("libibverbs.so.1", RTLD_NOW)));
		look_up_all(library, 0);
		CHECK((devices = verbs.get_device_list(NULL)) && devices[0] == device);
		write_and_compare(devices[0]);
	}
	printf("%s: the bytes are the same\n", kind);
	return 0;
}
