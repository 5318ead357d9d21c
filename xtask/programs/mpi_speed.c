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

/* Minimum duration of the measured rounds in seconds. */
#define LEAST_SECONDS 0.5

/* Number of the first rounds, whose messages are all compared. */
#define COMPARED 10

/* Returns the duration of round trips in seconds. */
static double round_trips(unsigned char *sent, unsigned char *back, int size, int times)
{
	double begun = MPI_Wtime();

	for (int time = 0; time < times; time++) {
		if (rank == 0)
			MPI_Send(sent, size, MPI_BYTE, 1, 0, MPI_COMM_WORLD);
		MPI_Recv(back, size, MPI_BYTE, 1 - rank, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
		if (rank == 1)
			MPI_Send(back, size, MPI_BYTE, 0, 0, MPI_COMM_WORLD);
		if (times == COMPARED) {
			expect(memcmp(sent, back, size) == 0, "a message differs from the sent one");
			memset(back, 0, size);
		}
	}
	return MPI_Wtime() - begun;
}

/* Returns the one-way time of a ping-pong in seconds. The number of rounds rises until they take long enough, so the
 * earlier rounds warm up. */
static double ping_pong(int size)
{
	unsigned char *sent = malloc(size), *back = calloc(size, 1);
	double took;
	int times = COMPARED;

	expect(sent && back, "no memory");
	for (int at = 0; at < size; at++)
		sent[at] = at * 31 ^ at >> 8 ^ at >> 16;
	for (;;) {
		took = round_trips(sent, back, size, times);
		MPI_Bcast(&took, 1, MPI_DOUBLE, 0, MPI_COMM_WORLD);
		if (times > COMPARED && took >= LEAST_SECONDS)
			break;
		/* The first rounds may be slow or too short for the clock. */
		double factor = took > 0 ? 1.2 * LEAST_SECONDS / took : 10;
		times *= factor > 10 ? 10 : factor < 2 ? 2 : factor;
	}
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
	double small = ping_pong(8), large = ping_pong(1 << 20);
	if (rank == 0)
		printf("one way, 8 B: %.2f us\nping-pong, 1 MiB: %.0f MB/s\n", small * 1e6, (1 << 20) / large / 1e6);
	MPI_Finalize();
	return 0;
}
