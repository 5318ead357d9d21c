/* Regions of memory that a file descriptor names (ibv_reg_dmabuf_mr): memfd, and a DMA buffer of udmabuf if the kernel
 * has it. The descriptor is closed, or the memory is truncated or sealed, while the region exists. With the argument
 * `vgem`, the DMA buffer is one of the module vgem, a graphics card without hardware. */
#define _GNU_SOURCE
#include "common.h"
#include <fcntl.h>
#include <linux/udmabuf.h>
#include <sys/ioctl.h>

#define PAGE 4096
#define LARGE (8 << 20)
#define BUFFER (4 * PAGE)
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)

/* Address of a region's first page for work requests. The process has no memory there. */
#define IOVA 0x500000000000ull
#define AT(offset) ((void *)(uintptr_t)(IOVA + (offset)))

struct pair {
	struct ibv_cq *cq;
	struct ibv_qp *a, *b;
};

/* Ordinary memory, at the other end of each request. */
static char *own;
static struct ibv_mr *own_mr;

static struct pair new_pair(void)
{
	struct pair pair = { .cq = ibv_create_cq(context, 16, NULL, NULL, 0) };

	CHECK(pair.cq);
	pair.a = create_qp(pair.cq, NULL, IBV_QPT_RC, 4);
	pair.b = create_qp(pair.cq, NULL, IBV_QPT_RC, 4);
	connect_pair(pair.a, pair.b);
	return pair;
}

static void end(struct pair pair)
{
	CHECK(ibv_destroy_qp(pair.a) == 0 && ibv_destroy_qp(pair.b) == 0 && ibv_destroy_cq(pair.cq) == 0);
}

/* Runs one request over a new pair of queue pairs, since a failed request breaks its pair. Returns its status. */
static enum ibv_wc_status run(enum ibv_wr_opcode opcode, const struct ibv_mr *mr, void *from, uint32_t length,
			      const struct ibv_mr *remote, void *to)
{
	struct pair pair = new_pair();
	enum ibv_wc_status status;

	CHECK(post(pair.a, opcode, 1, mr, from, length, remote, to) == 0);
	status = next_completion(pair.cq).status;
	end(pair);
	return status;
}

static void fill_own(char seed)
{
	for (int i = 0; i < LARGE; i++)
		own[i] = (char)(i * 31 + i / 256 + seed);
}

/* Other regions and queue pairs work as before. */
static void nothing_else_is_harmed(void)
{
	fill_own(3);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, PAGE, own_mr, own + 2 * PAGE) == IBV_WC_SUCCESS);
	CHECK(memcmp(own, own + 2 * PAGE, PAGE) == 0);
}

static int memory_of(size_t bytes)
{
	int file = memfd_create("dmabuf", MFD_CLOEXEC | MFD_ALLOW_SEALING);

	CHECK(file >= 0 && ftruncate(file, bytes) == 0);
	return file;
}

static char *view_of(int file, size_t bytes)
{
	char *view = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);

	CHECK(view != MAP_FAILED);
	return view;
}

/* Moves bytes by each operation, and compares them. The descriptor is closed meanwhile. */
static void data(void)
{
	const uint32_t length = 2 * PAGE - 8;
	int file = memory_of(4 * PAGE);
	char *view = view_of(file, 4 * PAGE), *back = own + 4 * PAGE;
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, PAGE + 8, length, IOVA + 8, file, ALL | IBV_ACCESS_RELAXED_ORDERING);
	struct pair pair = new_pair();

	CHECK(mr && mr->addr == (void *)(PAGE + 8) && mr->length == length && mr->pd == pd);
	CHECK(close(file) == 0);
	memset(view, 1, 4 * PAGE);
	fill_own(7);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, length, mr, AT(8)) == IBV_WC_SUCCESS);
	CHECK(memcmp(view + PAGE + 8, own, length) == 0);
	for (int i = 0; i < PAGE + 8; i++)
		CHECK(view[i] == 1);
	for (int i = 3 * PAGE; i < 4 * PAGE; i++)
		CHECK(view[i] == 1);
	/* Changes of the program are visible to the peer. */
	view[PAGE + 8] = 99;
	CHECK(run(IBV_WR_RDMA_READ, own_mr, back, length, mr, AT(8)) == IBV_WC_SUCCESS);
	CHECK(back[0] == 99 && memcmp(back + 1, own + 1, length - 1) == 0);
	/* The region also serves as the local memory of requests. */
	memset(back, 0, length);
	CHECK(post_receive(pair.b, NULL, 2, own_mr, back, length) == 0);
	CHECK(post(pair.a, IBV_WR_SEND, 1, mr, AT(8), length, NULL, NULL) == 0);
	for (int i = 0; i < 2; i++)
		CHECK(next_completion(pair.cq).status == IBV_WC_SUCCESS);
	CHECK(memcmp(back, view + PAGE + 8, length) == 0);
	CHECK(run(IBV_WR_RDMA_READ, mr, AT(8), 64, own_mr, own + PAGE) == IBV_WC_SUCCESS);
	CHECK(memcmp(view + PAGE + 8, own + PAGE, 64) == 0);
	/* Accesses beside the region fail, although the descriptor has memory there. */
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 1, mr, AT(7)) == IBV_WC_REM_ACCESS_ERR);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 1, mr, AT(2 * PAGE)) == IBV_WC_REM_ACCESS_ERR);
	CHECK(run(IBV_WR_RDMA_WRITE, mr, AT(7), 1, own_mr, own) == IBV_WC_LOC_PROT_ERR);
	end(pair);
	CHECK(ibv_dereg_mr(mr) == 0 && munmap(view, 4 * PAGE) == 0);
	nothing_else_is_harmed();
}

/* The second page disappears, and comes back. */
static void truncated(void)
{
	int file = memory_of(2 * PAGE);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, 2 * PAGE, IOVA, file, ALL);
	struct pair pair = new_pair();

	CHECK(mr);
	/* A receive waits for its message when the memory goes. */
	CHECK(post_receive(pair.b, NULL, 2, mr, AT(PAGE), 64) == 0);
	CHECK(ftruncate(file, PAGE) == 0);
	CHECK(post(pair.a, IBV_WR_SEND, 1, own_mr, own, 64, NULL, NULL) == 0);
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next_completion(pair.cq);

		CHECK(wc.status == (wc.wr_id == 1 ? IBV_WC_REM_OP_ERR : IBV_WC_LOC_PROT_ERR));
	}
	end(pair);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 64, mr, AT(PAGE - 32)) == IBV_WC_REM_ACCESS_ERR);
	CHECK(run(IBV_WR_RDMA_READ, own_mr, own, 64, mr, AT(PAGE)) == IBV_WC_REM_OP_ERR);
	CHECK(run(IBV_WR_RDMA_WRITE, mr, AT(PAGE), 64, own_mr, own) == IBV_WC_LOC_PROT_ERR);
	CHECK(run(IBV_WR_RDMA_READ, mr, AT(PAGE), 64, own_mr, own) == IBV_WC_LOC_PROT_ERR);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, PAGE, mr, AT(0)) == IBV_WC_SUCCESS);
	nothing_else_is_harmed();
	CHECK(ftruncate(file, 2 * PAGE) == 0);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 2 * PAGE, mr, AT(0)) == IBV_WC_SUCCESS);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 2 * PAGE + 1, IOVA, file, ALL) && errno == EINVAL);
	CHECK(ibv_dereg_mr(mr) == 0 && close(file) == 0);
}

/* The memory shrinks at any time during a request. */
static void truncated_on_the_way(void)
{
	int file = memory_of(LARGE);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, LARGE, IOVA, file, ALL);

	CHECK(mr);
	for (int round = 0; round < 20; round++) {
		int is_source = round % 2;
		struct pair pair = new_pair();
		enum ibv_wc_status status, failed = is_source ? IBV_WC_LOC_PROT_ERR : IBV_WC_REM_ACCESS_ERR;

		if (is_source)
			CHECK(post(pair.a, IBV_WR_RDMA_WRITE, 1, mr, AT(0), LARGE, own_mr, own) == 0);
		else
			CHECK(post(pair.a, IBV_WR_RDMA_WRITE, 1, own_mr, own, LARGE, mr, AT(0)) == 0);
		for (int turn = 0; turn < round; turn++) {
			struct ibv_wc wc;

			/* Each poll moves a part of the message. */
			if (ibv_poll_cq(pair.cq, 1, &wc))
				break;
		}
		CHECK(ftruncate(file, PAGE) == 0);
		to_error(pair.b);
		CHECK(ftruncate(file, LARGE) == 0);
		to_error(pair.a);
		end(pair);
		status = is_source ? run(IBV_WR_RDMA_WRITE, mr, AT(0), LARGE, own_mr, own)
				   : run(IBV_WR_RDMA_WRITE, own_mr, own, LARGE, mr, AT(0));
		CHECK(status == IBV_WC_SUCCESS);
		CHECK(ftruncate(file, PAGE) == 0);
		status = is_source ? run(IBV_WR_RDMA_WRITE, mr, AT(0), LARGE, own_mr, own)
				   : run(IBV_WR_RDMA_WRITE, own_mr, own, LARGE, mr, AT(0));
		CHECK(status == failed);
		CHECK(ftruncate(file, LARGE) == 0);
	}
	nothing_else_is_harmed();
	CHECK(ibv_dereg_mr(mr) == 0 && close(file) == 0);
}

/* Seals that are set before and after a registration. */
static void sealed(void)
{
	int file = memory_of(2 * PAGE);
	struct ibv_mr *mr = ibv_reg_dmabuf_mr(pd, 0, 2 * PAGE, IOVA, file, ALL);

	CHECK(mr);
	/* Peers can write the memory, so the kernel refuses this seal, as for memory that a device has pinned. */
	CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_WRITE) == -1 && errno == EBUSY);
	CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE) == 0);
	CHECK(ftruncate(file, PAGE) == -1 && errno == EPERM);
	/* The seal holds for new mappings only. */
	fill_own(5);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 2 * PAGE, mr, AT(0)) == IBV_WC_SUCCESS);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, IOVA, file, ALL) && errno == EPERM);
	CHECK(ibv_dereg_mr(mr) == 0);
	CHECK((mr = ibv_reg_dmabuf_mr(pd, 0, 2 * PAGE, IOVA, file, IBV_ACCESS_REMOTE_READ)));
	CHECK(run(IBV_WR_RDMA_READ, own_mr, own + 4 * PAGE, 2 * PAGE, mr, AT(0)) == IBV_WC_SUCCESS);
	CHECK(memcmp(own, own + 4 * PAGE, 2 * PAGE) == 0);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 1, mr, AT(0)) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0 && close(file) == 0);
	nothing_else_is_harmed();
}

static void refused(void)
{
	int ends[2], file = memory_of(PAGE);

	CHECK(pipe(ends) == 0);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, ends[0], ALL) && errno == EOPNOTSUPP);
	CHECK(close(ends[0]) == 0 && close(ends[1]) == 0);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, ends[0], ALL) && errno == EBADF);
	/* By this call, UCX and NCCL find out whether a device has the function. */
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, -1, ALL) && errno == EBADF);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, 0, 0, file, ALL) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 8, file, ALL) && errno == EINVAL);
	CHECK(!ibv_reg_dmabuf_mr(pd, 0, PAGE, 0, file, ALL | IBV_ACCESS_ON_DEMAND) && errno == EINVAL);
	CHECK(close(file) == 0);
}

/* Returns a DMA buffer of memory, or -1 if the kernel has no udmabuf. */
static int buffer_of_udmabuf(void)
{
	int device = open("/dev/udmabuf", O_RDWR | O_CLOEXEC), file, buffer;
	struct udmabuf_create create = { .flags = UDMABUF_FLAGS_CLOEXEC, .size = BUFFER };

	if (device < 0)
		return -1;
	create.memfd = file = memory_of(BUFFER);
	CHECK(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
	CHECK((buffer = ioctl(device, UDMABUF_CREATE, &create)) >= 0);
	CHECK(close(file) == 0 && close(device) == 0);
	return buffer;
}

/* Returns a DMA buffer of the first graphics card, which is that of the module vgem. Debian's package of the kernel's
 * headers lacks `drm.h`, so its types are here. */
static int buffer_of_vgem(void)
{
	struct {
		uint32_t height, width, bpp, flags, handle, pitch;
		uint64_t size;
	} dumb = { .height = 1, .width = BUFFER / 4, .bpp = 32 };
	struct {
		uint32_t handle, flags;
		int32_t fd;
	} shared = { .flags = O_CLOEXEC | O_RDWR };
	int card = open("/dev/dri/card0", O_RDWR | O_CLOEXEC);

	CHECK(card >= 0);
	/* DRM_IOCTL_MODE_CREATE_DUMB and DRM_IOCTL_PRIME_HANDLE_TO_FD */
	CHECK(ioctl(card, _IOWR('d', 0xb2, typeof(dumb)), &dumb) == 0 && dumb.size == BUFFER);
	shared.handle = dumb.handle;
	CHECK(ioctl(card, _IOWR('d', 0x2d, typeof(shared)), &shared) == 0 && close(card) == 0);
	return shared.fd;
}

/* Moves bytes to and from a DMA buffer of the kernel, and closes its descriptor meanwhile. */
static void dma_buffer(int buffer)
{
	char *view = view_of(buffer, BUFFER), *back = own + BUFFER;
	const uint32_t length = BUFFER - PAGE;
	struct ibv_mr *mr;

	CHECK(!ibv_reg_dmabuf_mr(pd, PAGE, BUFFER, IOVA, buffer, ALL) && errno == EINVAL);
	CHECK((mr = ibv_reg_dmabuf_mr(pd, PAGE, length, IOVA, buffer, ALL)));
	CHECK(close(buffer) == 0);
	fill_own(9);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, length, mr, AT(0)) == IBV_WC_SUCCESS);
	CHECK(memcmp(view + PAGE, own, length) == 0);
	view[PAGE] = 99;
	CHECK(run(IBV_WR_RDMA_READ, own_mr, back, length, mr, AT(0)) == IBV_WC_SUCCESS);
	CHECK(back[0] == 99 && memcmp(back + 1, own + 1, length - 1) == 0);
	CHECK(run(IBV_WR_RDMA_WRITE, own_mr, own, 1, mr, AT(length)) == IBV_WC_REM_ACCESS_ERR);
	CHECK(ibv_dereg_mr(mr) == 0 && munmap(view, BUFFER) == 0);
	nothing_else_is_harmed();
}

int main(int count, char **arguments)
{
	int is_vgem = count > 1 && strcmp(arguments[1], "vgem") == 0;
	int buffer = is_vgem ? buffer_of_vgem() : buffer_of_udmabuf();

	open_device();
	CHECK((own = malloc(LARGE)));
	CHECK((own_mr = ibv_reg_mr(pd, own, LARGE, ALL)));
	data();
	truncated();
	truncated_on_the_way();
	sealed();
	refused();
	if (buffer >= 0)
		dma_buffer(buffer);
	else
		fprintf(stderr, "DMA buffers are left out: there is no /dev/udmabuf\n");
	CHECK(ibv_dereg_mr(own_mr) == 0);
	close_device();
	free(own);
	return 0;
}
