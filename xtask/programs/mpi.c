/* MPI between two or more ranks, with every byte checked. Covers messages of all sizes between all pairs at once,
 * receives from any source, collective operations, and put, get and accumulate on remote memory. */
#include <mpi.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(x)                                                                    \
	do {                                                                        \
		if (!(x)) {                                                         \
			fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, #x); \
			MPI_Abort(MPI_COMM_WORLD, 1);                               \
		}                                                                   \
	} while (0)

#define MOST 16
#define COUNT(array) (int)(sizeof(array) / sizeof((array)[0]))

static const int SIZES[] = { 0, 1, 100, 4096, 60000, 1000003, 4194304 };

static int rank, ranks;

/* Returns a byte that depends on sender, receiver, size and position. */
static unsigned char byte_of(int from, int to, int size, int at)
{
	return (at * 31 ^ at >> 8 ^ at >> 16) + from * 7 + to * 13 + size;
}

static unsigned char *message(int from, int to, int size)
{
	unsigned char *bytes = malloc(size + 1);

	CHECK(bytes);
	for (int at = 0; at < size; at++)
		bytes[at] = byte_of(from, to, size, at);
	return bytes;
}

static void expect(const unsigned char *bytes, int from, int to, int size)
{
	for (int at = 0; at < size; at++)
		CHECK(bytes[at] == byte_of(from, to, size, at));
}

/* Sends messages between all pairs of ranks at once. Each rank also sends to itself. */
static void pairs(int size)
{
	unsigned char *from[MOST], *to[MOST];
	MPI_Request requests[2 * MOST];
	MPI_Status statuses[2 * MOST];
	int length;

	for (int other = 0; other < ranks; other++) {
		from[other] = message(rank, other, size);
		CHECK((to[other] = calloc(size + 1, 1)));
		MPI_Irecv(to[other], size, MPI_BYTE, other, size, MPI_COMM_WORLD, &requests[other]);
	}
	for (int other = 0; other < ranks; other++) {
		if (other % 2)
			MPI_Isend(from[other], size, MPI_BYTE, other, size, MPI_COMM_WORLD, &requests[ranks + other]);
		else
			MPI_Issend(from[other], size, MPI_BYTE, other, size, MPI_COMM_WORLD, &requests[ranks + other]);
	}
	MPI_Waitall(2 * ranks, requests, statuses);
	for (int other = 0; other < ranks; other++) {
		MPI_Get_count(&statuses[other], MPI_BYTE, &length);
		CHECK(length == size && statuses[other].MPI_SOURCE == other);
		expect(to[other], other, rank, size);
		free(from[other]);
		free(to[other]);
	}
}

/* Rank 0 receives messages from any source with any tag. It probes their lengths first. */
static void any_source(void)
{
	int seen[MOST][COUNT(SIZES)] = { 0 };

	if (rank > 0) {
		for (int i = 0; i < COUNT(SIZES); i++) {
			unsigned char *bytes = message(rank, 0, SIZES[i]);

			MPI_Send(bytes, SIZES[i], MPI_BYTE, 0, i, MPI_COMM_WORLD);
			free(bytes);
		}
		return;
	}
	for (int left = (ranks - 1) * COUNT(SIZES); left > 0; left--) {
		MPI_Status status;
		unsigned char *bytes;
		int length;

		MPI_Probe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &status);
		MPI_Get_count(&status, MPI_BYTE, &length);
		CHECK(length == SIZES[status.MPI_TAG] && !seen[status.MPI_SOURCE][status.MPI_TAG]++);
		CHECK((bytes = malloc(length + 1)));
		MPI_Recv(bytes, length, MPI_BYTE, status.MPI_SOURCE, status.MPI_TAG, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		expect(bytes, status.MPI_SOURCE, 0, length);
		free(bytes);
	}
}

#define WORDS 50000

static void collectives(void)
{
	static uint64_t own[WORDS], all[WORDS], each[MOST * 1000], from[MOST * 1000];
	uint64_t least;

	for (int root = 0; root < ranks; root++) {
		for (int i = 0; i < WORDS; i++)
			own[i] = rank == root ? (uint64_t)i * i + root : 0;
		MPI_Bcast(own, WORDS, MPI_UINT64_T, root, MPI_COMM_WORLD);
		for (int i = 0; i < WORDS; i++)
			CHECK(own[i] == (uint64_t)i * i + root);
	}
	for (int i = 0; i < WORDS; i++)
		own[i] = (uint64_t)i << rank;
	MPI_Allreduce(own, all, WORDS, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
	for (int i = 0; i < WORDS; i++)
		CHECK(all[i] == (uint64_t)i * ((1u << ranks) - 1));
	for (int i = 0; i < ranks * 1000; i++)
		each[i] = (uint64_t)rank << 32 | i;
	MPI_Alltoall(each, 1000, MPI_UINT64_T, from, 1000, MPI_UINT64_T, MPI_COMM_WORLD);
	for (int i = 0; i < ranks * 1000; i++)
		CHECK(from[i] == ((uint64_t)(i / 1000) << 32 | (rank * 1000 + i % 1000)));
	least = rank + 5;
	MPI_Scan(MPI_IN_PLACE, &least, 1, MPI_UINT64_T, MPI_MIN, MPI_COMM_WORLD);
	CHECK(least == 5);
	for (int i = 0; i < 50; i++)
		MPI_Barrier(MPI_COMM_WORLD);
}

#define SLOT 100000
#define ADDS 20

/* Puts, gets and accumulates. Each rank's memory has a slot for each rank, and a counter at the end. */
static void one_sided(void)
{
	unsigned char *memory, *own = message(rank, 0, SLOT), *back = malloc(SLOT);
	MPI_Aint counter = (MPI_Aint)ranks * SLOT;
	uint64_t *count, one = 1, before, last = 0;
	int next = (rank + 1) % ranks;
	MPI_Win window;

	CHECK(back);
	/* MPICH 4.0 writes beside the memory of a rank on the same machine if the length is not a multiple of 16. */
	MPI_Win_allocate((counter + 8 + 63) / 64 * 64, 1, MPI_INFO_NULL, MPI_COMM_WORLD, &memory, &window);
	memset(memory, 0, counter + 8);
	count = (uint64_t *)(memory + counter);
	MPI_Win_fence(0, window);
	for (int other = 0; other < ranks; other++)
		MPI_Put(own, SLOT, MPI_BYTE, other, (MPI_Aint)rank * SLOT, SLOT, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	for (int other = 0; other < ranks; other++)
		expect(memory + other * SLOT, other, 0, SLOT);
	MPI_Win_fence(0, window);
	MPI_Get(back, SLOT, MPI_BYTE, next, (MPI_Aint)rank * SLOT, SLOT, MPI_BYTE, window);
	MPI_Win_fence(0, window);
	expect(back, rank, 0, SLOT);
	for (int add = 0; add < ADDS; add++) {
		MPI_Win_lock(MPI_LOCK_SHARED, 0, 0, window);
		MPI_Fetch_and_op(&one, &before, MPI_UINT64_T, 0, counter, MPI_SUM, window);
		MPI_Accumulate(&one, 1, MPI_UINT64_T, 0, counter, 1, MPI_UINT64_T, MPI_SUM, window);
		MPI_Win_unlock(0, window);
		CHECK(before >= last && before < 2u * ADDS * ranks);
		last = before;
	}
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0) {
		MPI_Win_lock(MPI_LOCK_EXCLUSIVE, 0, 0, window);
		CHECK(*count == 2u * ADDS * ranks);
		MPI_Win_unlock(0, window);
	}
	MPI_Win_free(&window);
	free(own);
	free(back);
}

/* The last rank dies while the others send to it. */
static void death(void)
{
	unsigned char *bytes = message(rank, ranks - 1, SLOT);

	for (int round = 0;; round++) {
		if (rank == ranks - 1 && round == 20)
			raise(SIGKILL);
		MPI_Bcast(bytes, SLOT, MPI_BYTE, round % ranks, MPI_COMM_WORLD);
	}
}

int main(int count, char **arguments)
{
	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	CHECK(ranks >= 2 && ranks <= MOST);
	for (int i = 0; i < COUNT(SIZES); i++)
		pairs(SIZES[i]);
	if (count > 1 && strcmp(arguments[1], "killed") == 0)
		death();
	any_source();
	collectives();
	one_sided();
	MPI_Barrier(MPI_COMM_WORLD);
	if (rank == 0)
		printf("all bytes of %d ranks are right\n", ranks);
	MPI_Finalize();
	return 0;
}
