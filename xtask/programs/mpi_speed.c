/* Speed of two ranks of MPI. Each returned message is compared with the sent one. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int rank;

static void expect(int holds, const char *what)
{
	if (!holds) {
		fprintf(stderr, "rank %d: %s\n", rank, what);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
}

/* Returns the one-way time of a ping-pong in seconds. The first rounds warm up and are not timed. */
static double ping_pong(int size, int times)
{
	unsigned char *sent = malloc(size), *back = calloc(size, 1);
	double begun = 0;

	expect(sent && back, "no memory");
	for (int at = 0; at < size; at++)
		sent[at] = at * 31 ^ at >> 8 ^ at >> 16;
	for (int time = -times / 10 - 1; time < times; time++) {
		if (time == 0)
			begun = MPI_Wtime();
		if (rank == 0)
			MPI_Send(sent, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(back, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(back, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		if (time < 0) {
			expect(memcmp(sent, back, size) == 0, "a message differs from the sent one");
			memset(back, 0, size);
		}
	}
	double took = MPI_Wtime() - begun;
	expect(memcmp(sent, back, size) == 0, "the last message differs from the sent one");
	free(sent);
	free(back);
	return took / times / 2;
}

int main(int count, char **arguments)
{
	int ranks;

	MPI_Init(&count, &arguments);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	expect(ranks == 2, "two ranks are needed");
	double small = ping_pong(8, 2000), large = ping_pong(1 << 20, 100);
	if (rank == 0)
		printf("one way, 8 B: %.2f us\nping-pong, 1 MiB: %.0f MB/s\n", small * 1e6, (1 << 20) / large / 1e6);
	MPI_Finalize();
	return 0;
}
