/* Two processes that exchange bytes through gloo's transport over verbs: `gloo RANK FOLDER WAY`. They meet by files in
 * FOLDER. Both compare all bytes. The ways are `data`, and `killed`: rank 1 then sends until rank 0 is gone, and expects
 * an exception. */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/ibverbs/device.h>

static int rank, rounds;

#define CHECK(x)                                                                              \
	do {                                                                                  \
		if (!(x)) {                                                                   \
			fprintf(stderr, "%s:%d: rank %d: %s\n", __FILE__, __LINE__, rank, #x); \
			exit(1);                                                              \
		}                                                                             \
	} while (0)

using Context = std::shared_ptr<gloo::rendezvous::Context>;

/* Keeps an object until the end of the process. The destructors of gloo's buffers fail while the completion of a send is
 * on its way, and some algorithms do not wait for their last completion. */
template <typename T> static T &kept(T *object)
{
	return *object;
}

static unsigned char byte_of(int from, size_t at)
{
	return at * 31 ^ at >> 8 ^ (from * 7 + rounds);
}

/* Sends bytes to the other rank, which sends them back. */
static void buffers(const Context &context, size_t size)
{
	auto &pair = context->getPair(1 - rank);
	auto &own = kept(new std::vector<unsigned char>(size)), &others = kept(new std::vector<unsigned char>(size));
	const int slot = context->nextSlot();
	auto &send = kept(pair->createSendBuffer(slot, own.data(), size).release());
	auto &receive = kept(pair->createRecvBuffer(slot, others.data(), size).release());
	auto &barrier = kept(new gloo::BarrierAllToAll(context));

	for (int i = 0; i < 5; i++) {
		rounds++;
		for (size_t at = 0; at < size; at++)
			own[at] = byte_of(rank, at);
		send.send();
		receive.waitRecv();
		send.waitSend();
		for (size_t at = 0; at < size; at++)
			CHECK(others[at] == byte_of(1 - rank, at));
		/* The other rank may write the buffer again from here on. */
		barrier.run();
	}
}

template <typename Algorithm> static void sum(const Context &context, int count)
{
	auto &numbers = kept(new std::vector<int64_t>(count));
	std::vector<int64_t *> pointers{ numbers.data() };

	for (int i = 0; i < count; i++)
		numbers[i] = (int64_t)(i + 1) << (8 * rank);
	kept(new Algorithm(context, pointers, count)).run();
	for (int i = 0; i < count; i++)
		CHECK(numbers[i] == (int64_t)(i + 1) * 257);
}

static void broadcast(const Context &context, int count)
{
	auto &numbers = kept(new std::vector<int64_t>(count));
	std::vector<int64_t *> pointers{ numbers.data() };

	for (int root = 0; root < 2; root++) {
		for (int i = 0; i < count; i++)
			numbers[i] = rank == root ? (int64_t)i * i + root : 0;
		kept(new gloo::BroadcastOneToAll<int64_t>(context, pointers, count, root)).run();
		for (int i = 0; i < count; i++)
			CHECK(numbers[i] == (int64_t)i * i + root);
	}
}

static void data(const Context &context)
{
	for (size_t size : { 1, 1000, 65536, 1 << 20 })
		buffers(context, size);
	for (int count : { 1, 1000, 100000 }) {
		sum<gloo::AllreduceRingChunked<int64_t>>(context, count);
		sum<gloo::AllreduceHalvingDoubling<int64_t>>(context, count);
		broadcast(context, count);
	}
	kept(new gloo::BarrierAllToAll(context)).run();
	puts("all bytes are right");
}

static void killed(const Context &context)
{
	auto &pair = context->getPair(1 - rank);
	auto &memory = kept(new std::vector<unsigned char>(1 << 20));
	const int slot = context->nextSlot();

	if (rank == 0) {
		auto &receive = kept(pair->createRecvBuffer(slot, memory.data(), memory.size()).release());

		puts("ready to be killed");
		fflush(stdout);
		for (;;)
			receive.waitRecv();
	}
	/* With this mode, the calling thread gets the error. Otherwise, a thread of gloo would end the process. */
	pair->setSync(true, true);

	auto &send = kept(pair->createSendBuffer(slot, memory.data(), memory.size()).release());

	try {
		for (;;) {
			send.send();
			send.waitSend();
		}
	} catch (const std::exception &error) {
		printf("the peer is gone: %s\n", error.what());
	}
}

int main(int count, char **arguments)
{
	CHECK(count == 4);
	rank = atoi(arguments[1]);

	gloo::transport::ibverbs::attr attributes;
	attributes.name = "doorbell0";
	attributes.port = 1;
	attributes.index = 0;

	auto device = gloo::transport::ibverbs::CreateDevice(attributes);
	gloo::rendezvous::FileStore store(arguments[2]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
	context->setTimeout(std::chrono::seconds(60));
	context->connectFullMesh(store, device);
	if (strcmp(arguments[3], "killed") == 0)
		killed(context);
	else
		data(context);
	fflush(stdout);
	/* The destructors of the kept objects, and of the broken pair, must not run. */
	_Exit(0);
}
