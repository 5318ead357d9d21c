/* Several devices in one process: names, GUIDs and places, packets between two devices, and what each device has alone:
 * events, counters, an address and the ids of librdmacm. Run with three devices. `doorbell1` has NUMA node 0, the PCI
 * address 0000:fe:00.0 and a rate of 200 Gb/s. */
#include "common.h"

#include <arpa/inet.h>
#include <limits.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/wait.h>

#define DEVICES 3
#define LONG 20000
#define CLASS "/sys/class/infiniband/"

/* The objects of one device that has an end of the connection. */
struct side {
	struct ibv_context *context;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
	struct ibv_srq *srq;
	struct ibv_qp *qp;
	struct ibv_mr *mr;
	char *memory;
	union ibv_gid gid;
};

static const char *content(const char *device, const char *name)
{
	static char text[4096];
	char path[PATH_MAX];
	size_t length;
	FILE *file;

	snprintf(path, sizeof path, CLASS "%s/%s", device, name);
	CHECK((file = fopen(path, "r")));
	length = fread(text, 1, sizeof text - 1, file);
	fclose(file);
	text[length] = 0;
	return text;
}

static uint64_t counter(const char *device, const char *name)
{
	char path[256];

	snprintf(path, sizeof path, "ports/1/counters/%s", name);
	return strtoull(content(device, path), NULL, 10);
}

static struct ibv_device *by_name(const char *name)
{
	for (int i = 0; devices[i]; i++)
		if (!strcmp(ibv_get_device_name(devices[i]), name))
			return devices[i];
	return NULL;
}

static struct ibv_device *by_guid(__be64 guid)
{
	for (int i = 0; devices[i]; i++)
		if (ibv_get_device_guid(devices[i]) == guid)
			return devices[i];
	return NULL;
}

/* All devices are listed, and each is found by its name, its GUID and its files. */
static void list(void)
{
	int count = 0;

	CHECK((devices = ibv_get_device_list(&count)));
	CHECK(count == DEVICES && !devices[DEVICES]);
	for (int i = 0; i < DEVICES; i++) {
		uint64_t guid = be64toh(ibv_get_device_guid(devices[i]));
		char name[64], shown[64];

		snprintf(name, sizeof name, "doorbell%d", i);
		CHECK(by_name(name) == devices[i] && by_guid(htobe64(guid)) == devices[i]);
		CHECK(ibv_get_device_index(devices[i]) == i);
		snprintf(shown, sizeof shown, "%04x:%04x:%04x:%04x\n", (unsigned int)(guid >> 48),
			 (unsigned int)(guid >> 32 & 0xffff), (unsigned int)(guid >> 16 & 0xffff),
			 (unsigned int)(guid & 0xffff));
		CHECK(!strcmp(content(name, "node_guid"), shown));
		CHECK(!strcmp(devices[i]->ibdev_path + strlen(CLASS), name));
		for (int other = 0; other < i; other++)
			CHECK(strcmp(devices[i]->dev_path, devices[other]->dev_path));
	}
	CHECK(!by_name("doorbell3"));
}

/* The options of a device show in its files. */
static void places(void)
{
	char path[PATH_MAX];

	CHECK(realpath(CLASS "doorbell1/device", path));
	CHECK(!strcmp(path, "/sys/devices/pci0000:fe/0000:fe:00.0"));
	CHECK(realpath(CLASS "doorbell2/device", path));
	CHECK(!strcmp(path, "/sys/devices/platform/doorbell.2"));
	CHECK(!strcmp(content("doorbell0", "device/numa_node"), "-1\n"));
	CHECK(!strcmp(content("doorbell1", "device/numa_node"), "0\n"));
	CHECK(!strcmp(content("doorbell1", "device/class"), "0x020700\n"));
	CHECK(!strcmp(content("doorbell1", "ports/1/rate"), "200 Gb/sec (4X HDR)\n"));
}

static struct side open_side(const char *name)
{
	struct ibv_srq_init_attr init = { .attr = { .max_wr = 8, .max_sge = 1 } };
	struct ibv_device_attr attributes;
	struct side own;

	CHECK((own.context = ibv_open_device(by_name(name))));
	CHECK(own.context->device == by_name(name));
	CHECK(ibv_query_device(own.context, &attributes) == 0);
	CHECK(attributes.node_guid == ibv_get_device_guid(by_name(name)));
	CHECK(ibv_query_gid(own.context, 1, 0, &own.gid) == 0);
	CHECK((own.pd = ibv_alloc_pd(own.context)));
	CHECK((own.cq = ibv_create_cq(own.context, 16, NULL, NULL, 0)));
	CHECK((own.srq = ibv_create_srq(own.pd, &init)));
	CHECK((own.memory = calloc(1, LONG)));
	CHECK((own.mr = ibv_reg_mr(own.pd, own.memory, LONG, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE |
				   IBV_ACCESS_REMOTE_READ)));
	pd = own.pd;
	own.qp = create_qp(own.cq, own.srq, IBV_QPT_RC, 8);
	return own;
}

static void connect_to(struct side *own, const struct side *peer)
{
	gid = peer->gid;
	start(own->qp, peer->qp);
}

static void close_side(struct side *own)
{
	CHECK(ibv_destroy_qp(own->qp) == 0 && ibv_destroy_srq(own->srq) == 0 && ibv_destroy_cq(own->cq) == 0);
	CHECK(ibv_dereg_mr(own->mr) == 0 && ibv_dealloc_pd(own->pd) == 0 && ibv_close_device(own->context) == 0);
	free(own->memory);
}

static int has_event(const struct side *own)
{
	struct pollfd readable = { .fd = own->context->async_fd, .events = POLLIN | POLLOUT }; /* never writable */

	return poll(&readable, 1, 0);
}

/* Messages from one device to the other arrive byte for byte. Objects of one device are unknown to the other. */
static void messages(struct side *one, struct side *other)
{
	struct ibv_qp_init_attr mixed = {
		.send_cq = other->cq,
		.recv_cq = other->cq,
		.cap = { 1, 1, 1, 1, 0 },
		.qp_type = IBV_QPT_RC,
	};
	struct ibv_port_attr wide, plain;
	struct ibv_wc wc;

	CHECK(memcmp(&one->gid, &other->gid, sizeof one->gid));
	CHECK(ibv_query_port(one->context, 1, &plain) == 0 && ibv_query_port(other->context, 1, &wide) == 0);
	CHECK(plain.active_width == 2 && plain.active_speed == 32);
	CHECK(wide.active_width == 2 && wide.active_speed == 64);
	for (int i = 0; i < LONG; i++)
		one->memory[i] = i * 7;
	CHECK(post(one->qp, IBV_WR_RDMA_WRITE, 1, one->mr, one->memory, LONG, other->mr, other->memory) == 0);
	wc = next_completion(one->cq);
	CHECK(wc.wr_id == 1 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(one->memory, other->memory, LONG));
	memset(one->memory, 0, LONG);
	CHECK(post_receive(NULL, one->srq, 2, one->mr, one->memory, LONG) == 0);
	CHECK(post(other->qp, IBV_WR_SEND, 3, other->mr, other->memory, LONG, NULL, NULL) == 0);
	wc = next_completion(one->cq);
	CHECK(wc.wr_id == 2 && wc.status == IBV_WC_SUCCESS && wc.byte_len == LONG);
	wc = next_completion(other->cq);
	CHECK(wc.wr_id == 3 && wc.status == IBV_WC_SUCCESS);
	CHECK(!memcmp(one->memory, other->memory, LONG));
	CHECK(!ibv_create_qp(one->pd, &mixed) && errno == EINVAL);
	mixed.send_cq = mixed.recv_cq = one->cq;
	mixed.srq = other->srq;
	CHECK(!ibv_create_qp(one->pd, &mixed) && errno == EINVAL);
}

/* Each device counts its own packets. A device that no program has opened counts nothing. */
static void counters(void)
{
	CHECK(counter("doorbell0", "port_xmit_packets") >= LONG / 4096);
	CHECK(counter("doorbell1", "port_xmit_packets") >= LONG / 4096);
	CHECK(counter("doorbell0", "port_rcv_data") >= LONG / 4);
	CHECK(counter("doorbell2", "port_xmit_packets") == 0 && counter("doorbell2", "port_rcv_data") == 0);
}

/* An event of one device reaches only the context of this device. */
static void events(struct side *one, struct side *other)
{
	CHECK(!has_event(one) && !has_event(other));
	to_error(other->qp);
	context = other->context;
	EXPECT_EVENT(IBV_EVENT_QP_LAST_WQE_REACHED, other->qp);
	CHECK(!has_event(one) && !has_event(other));
	to_error(one->qp);
	CHECK(!has_event(other));
	context = one->context;
	EXPECT_EVENT(IBV_EVENT_QP_LAST_WQE_REACHED, one->qp);
}

static struct rdma_cm_event *next_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	struct rdma_cm_event *event;

	CHECK(rdma_get_cm_event(channel, &event) == 0);
	if (event->event != kind)
		fprintf(stderr, "%s instead of %s\n", rdma_event_str(event->event), rdma_event_str(kind));
	CHECK(event->event == kind && event->status == 0);
	return event;
}

static void pass_event(struct rdma_event_channel *channel, enum rdma_cm_event_type kind)
{
	CHECK(rdma_ack_cm_event(next_event(channel, kind)) == 0);
}

static struct sockaddr_in address_of(const char *device)
{
	unsigned int words[8] = { 0 };
	struct sockaddr_in address = { .sin_family = AF_INET };

	/* The GID is an IPv4 address, mapped to IPv6. */
	CHECK(sscanf(content(device, "ports/1/gids/0"), "%x:%x:%x:%x:%x:%x:%x:%x", &words[0], &words[1], &words[2],
		     &words[3], &words[4], &words[5], &words[6], &words[7]) == 8);
	CHECK(words[5] == 0xffff && words[6]);
	address.sin_addr.s_addr = htonl(words[6] << 16 | words[7]);
	return address;
}

/* Ids belong to the device that has their address, and connect the devices. */
static void connections(void)
{
	const struct ibv_qp_init_attr plain = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct ibv_qp_init_attr init;
	struct sockaddr_in from = address_of("doorbell0"), to = address_of("doorbell1");
	struct rdma_event_channel *calling, *answering;
	struct rdma_cm_id *client, *listener, *server;
	struct rdma_conn_param param = { .retry_count = 7, .rnr_retry_count = 7 };
	struct rdma_cm_event *event;
	struct ibv_context **all;
	int count = 0;

	CHECK((calling = rdma_create_event_channel()) && (answering = rdma_create_event_channel()));
	/* A listener at all addresses gets requests at each device. */
	for (int any = 0; any < 2; any++) {
		struct sockaddr_in at = to;

		if (any)
			at.sin_addr.s_addr = htonl(INADDR_ANY);
		CHECK(rdma_create_id(answering, &listener, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_bind_addr(listener, (struct sockaddr *)&at) == 0);
		CHECK(any ? !listener->verbs : listener->verbs->device == by_name("doorbell1"));
		CHECK(rdma_listen(listener, 1) == 0);
		to.sin_port = rdma_get_src_port(listener);
		CHECK(rdma_create_id(calling, &client, NULL, RDMA_PS_TCP) == 0);
		CHECK(rdma_resolve_addr(client, (struct sockaddr *)&from, (struct sockaddr *)&to, 1000) == 0);
		pass_event(calling, RDMA_CM_EVENT_ADDR_RESOLVED);
		CHECK(client->verbs->device == by_name("doorbell0"));
		CHECK(rdma_resolve_route(client, 1000) == 0);
		pass_event(calling, RDMA_CM_EVENT_ROUTE_RESOLVED);
		/* The call returns the completion queues that it creates, and those of a device serve only that device. */
		init = plain;
		CHECK(rdma_create_qp(client, NULL, &init) == 0);
		CHECK(rdma_connect(client, &param) == 0);
		event = next_event(answering, RDMA_CM_EVENT_CONNECT_REQUEST);
		server = event->id;
		CHECK(rdma_ack_cm_event(event) == 0);
		CHECK(server->verbs->device == by_name("doorbell1"));
		init = plain;
		CHECK(rdma_create_qp(server, NULL, &init) == 0);
		CHECK(rdma_accept(server, &param) == 0);
		pass_event(calling, RDMA_CM_EVENT_ESTABLISHED);
		pass_event(answering, RDMA_CM_EVENT_ESTABLISHED);
		CHECK(rdma_disconnect(client) == 0);
		pass_event(calling, RDMA_CM_EVENT_DISCONNECTED);
		pass_event(answering, RDMA_CM_EVENT_DISCONNECTED);
		rdma_destroy_qp(client);
		rdma_destroy_qp(server);
		CHECK(rdma_destroy_id(client) == 0 && rdma_destroy_id(server) == 0 && rdma_destroy_id(listener) == 0);
		to.sin_port = 0;
	}
	rdma_destroy_event_channel(calling);
	rdma_destroy_event_channel(answering);

	/* librdmacm lists and opens all devices. */
	CHECK((all = rdma_get_devices(&count)) && count == DEVICES && !all[DEVICES]);
	for (int i = 0; i < DEVICES; i++)
		CHECK(all[i]->device == devices[i]);
	rdma_free_devices(all);
}

/* A child has the same list, and devices of its own. */
static void forks(struct side *one)
{
	union ibv_gid other;
	pid_t child;
	int status;

	CHECK((child = fork()) >= 0);
	if (child == 0) {
		CHECK(!ibv_alloc_pd(one->context) && errno == EIO);
		CHECK((context = ibv_open_device(by_name("doorbell0"))));
		CHECK(ibv_query_gid(context, 1, 0, &other) == 0 && memcmp(&other, &one->gid, sizeof other));
		CHECK(ibv_close_device(context) == 0);
		_exit(0);
	}
	CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

int main(void)
{
	struct side one, other;
	union ibv_gid before, now;
	char shown[64];

	list();
	places();
	/* Devices that are not open show different addresses. */
	snprintf(shown, sizeof shown, "%s", content("doorbell1", "ports/1/gids/0"));
	CHECK(strcmp(shown, content("doorbell0", "ports/1/gids/0")) && strcmp(shown, content("doorbell2", "ports/1/gids/0")));
	CHECK(!ibv_open_device(NULL) && errno == EINVAL);
	other = open_side("doorbell1");
	one = open_side("doorbell0");
	connect_to(&one, &other);
	connect_to(&other, &one);
	messages(&one, &other);
	counters();
	events(&one, &other);
	forks(&one);
	/* A device that is opened again keeps its address and the other device its connection. */
	before = other.gid;
	close_side(&other);
	CHECK(counter("doorbell1", "port_xmit_packets") >= LONG / 4096);
	other = open_side("doorbell1");
	CHECK(ibv_query_gid(other.context, 1, 0, &now) == 0 && !memcmp(&before, &now, sizeof now));
	close_side(&other);
	close_side(&one);
	connections();
	ibv_free_device_list(devices);
	return 0;
}
