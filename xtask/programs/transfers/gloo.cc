/* Two processes that exchange bytes through gloo's transport over verbs: `gloo RANK FOLDER WAY`. They meet by files in
 * FOLDER. Both compare all bytes. The ways are `data`, `speed` and `killed`. With `speed`, rank 0 prints the figures
 * of a ping-pong. With `killed`, rank 1 sends until rank 0 is gone, and expects an exception. A last argument `tcp`
 * selects the transport over TCP. */
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gloo/allreduce_halving_doubling.h>
#include <gloo/allreduce_ring_chunked.h>
#include <gloo/barrier_all_to_all.h>
#include <gloo/broadcast_one_to_all.h>
#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/buffer.h>
#include <gloo/transport/ibverbs/device.h>
#include <gloo/transport/tcp/device.h>

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

/* Exchanges a byte whose completion covers the completions of all earlier messages. gloo's barrier does not wait for the
 * completion of its own message. */
static void complete(const Context &context)
{
	auto &pair = context->getPair(1 - rank);
	auto &bytes = kept(new std::vector<unsigned char>(2));
	const int slot = context->nextSlot();
	auto &send = kept(pair->createSendBuffer(slot, &bytes[0], 1).release());
	auto &receive = kept(pair->createRecvBuffer(slot, &bytes[1], 1).release());

	send.send();
	receive.waitRecv();
	send.waitSend();
}

/* Waits until the other rank has completed all its messages. Until then, this process must acknowledge them. */
static void part(gloo::rendezvous::FileStore &store)
{
	store.set("parted" + std::to_string(rank), { 'p' });
	store.wait({ "parted" + std::to_string(1 - rank) }, std::chrono::seconds(60));
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
	complete(context);
	puts("all bytes are right");
}

/* Messages of one size that rank 1 answers with messages of the same size. */
struct ping_pong {
	std::vector<unsigned char> own, others;
	gloo::transport::Buffer *send, *receive;

	ping_pong(const Context &context, size_t size) : own(size), others(size)
	{
		auto &pair = context->getPair(1 - rank);
		const int slot = context->nextSlot();

		for (size_t at = 0; at < size; at++)
			own[at] = byte_of(rank, at);
		send = pair->createSendBuffer(slot, own.data(), size).release();
		receive = pair->createRecvBuffer(slot, others.data(), size).release();
	}

	void compare()
	{
		for (size_t at = 0; at < others.size(); at++)
			CHECK(others[at] == byte_of(1 - rank, at));
		memset(others.data(), 0, others.size());
	}

	/* Returns the one-way time in seconds. The first rounds warm up and are not timed. */
	double run(int times)
	{
		std::chrono::steady_clock::time_point begun;

		for (int time = -times / 10 - 1; time < times; time++) {
			if (time == 0)
				begun = std::chrono::steady_clock::now();
			if (rank == 0)
				send->send();
			receive->waitRecv();
			/* The other rank writes the memory again only after the next message of this rank. */
			if (time < 0)
				compare();
			if (rank == 1)
				send->send();
			send->waitSend();
		}
		const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begun;
		compare();
		return took.count() / times / 2;
	}
};

static void speed(const Context &context)
{
	/* In synchronous mode, a message must find its buffer, so all buffers exist before. */
	auto &small = kept(new ping_pong(context, 8)), &large = kept(new ping_pong(context, 1 << 20));

	kept(new gloo::BarrierAllToAll(context)).run();
	/* The calling thread polls from here on. A thread of gloo still handles the last event of the barrier. */
	context->getPair(1 - rank)->setSync(true, true);
	std::this_thread::sleep_for(std::chrono::milliseconds(100));
	const double one_way = small.run(150000), of_large = large.run(3000);
	if (rank == 0)
		printf("one way, 8 B: %.2f us\nping-pong, 1 MiB: %.0f MB/s\n", one_way * 1e6,
		       (1 << 20) / of_large / 1e6);
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

static std::shared_ptr<gloo::transport::Device> open_device(bool over_tcp)
{
	if (over_tcp) {
		/* The constructor leaves some members as they are, and static memory is zero. */
		static gloo::transport::tcp::attr attributes("127.0.0.1");

		return gloo::transport::tcp::CreateDevice(attributes);
	}

	gloo::transport::ibverbs::attr attributes;
	attributes.name = "doorbell0";
	attributes.port = 1;
	attributes.index = 0;
	return gloo::transport::ibverbs::CreateDevice(attributes);
}

int main(int count, char **arguments)
{
	CHECK(count >= 4);
	rank = atoi(arguments[1]);

	auto device = open_device(count > 4 && strcmp(arguments[4], "tcp") == 0);
	gloo::rendezvous::FileStore store(arguments[2]);
	auto context = std::make_shared<gloo::rendezvous::Context>(rank, 2);
	context->setTimeout(std::chrono::seconds(60));
	context->connectFullMesh(store, device);
	if (strcmp(arguments[3], "killed") == 0) {
		killed(context);
	} else {
		strcmp(arguments[3], "speed") == 0 ? speed(context) : data(context);
		part(store);
	}
	fflush(stdout);
	/* The destructors of the kept objects, and of the broken pair, must not run. */
	_Exit(0);
}
