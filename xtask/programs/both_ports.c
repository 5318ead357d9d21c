/* A program that listens for TCP and for RDMA at the same port, as storage targets and file servers do. Each listener
 * must get its own connections, regardless of the order in which the listeners start. */
#include "common.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <rdma/rdma_cma.h>
#include <sys/socket.h>
#include <sys/wait.h>

static int listen_tcp(const char *ip, int port)
{
	struct sockaddr_in address = { .sin_family = AF_INET, .sin_port = htons(port) };
	int one = 1, fd;

	CHECK(inet_pton(AF_INET, ip, &address.sin_addr) == 1);
	CHECK((fd = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one) == 0);
	CHECK(bind(fd, (struct sockaddr *)&address, sizeof address) == 0);
	CHECK(listen(fd, 1) == 0);
	return fd;
}

static struct rdma_cm_id *endpoint(const char *ip, int port, int flags)
{
	struct ibv_qp_init_attr init = { .cap = { 1, 1, 1, 1, 0 }, .qp_type = IBV_QPT_RC };
	struct rdma_addrinfo hints = { .ai_flags = flags, .ai_port_space = RDMA_PS_TCP }, *found;
	struct rdma_cm_id *id;
	char service[16];

	snprintf(service, sizeof service, "%d", port);
	CHECK(rdma_getaddrinfo(ip, service, &hints, &found) == 0);
	CHECK(rdma_create_ep(&id, found, NULL, &init) == 0);
	rdma_freeaddrinfo(found);
	return id;
}

static void serve(const char *ip, int tcp_first, int told)
{
	struct rdma_conn_param param = { .private_data = "rdma", .private_data_len = 4 };
	struct sockaddr_in own;
	socklen_t length = sizeof own;
	struct rdma_cm_id *listener, *id;
	int tcp = -1, peer, port = 0;

	if (tcp_first) {
		tcp = listen_tcp(ip, 0);
		CHECK(getsockname(tcp, (struct sockaddr *)&own, &length) == 0);
		port = ntohs(own.sin_port);
	}
	listener = endpoint(ip, port, RAI_PASSIVE);
	CHECK(rdma_listen(listener, 1) == 0);
	port = ntohs(rdma_get_src_port(listener));
	if (!tcp_first)
		tcp = listen_tcp(ip, port);
	CHECK(write(told, &port, sizeof port) == sizeof port);
	CHECK((peer = accept(tcp, NULL, NULL)) >= 0);
	CHECK(write(peer, "tcp", 3) == 3);
	close(peer);
	CHECK(rdma_get_request(listener, &id) == 0);
	CHECK(rdma_accept(id, &param) == 0);
	CHECK(rdma_disconnect(id) == 0);
	rdma_destroy_ep(id);
	rdma_destroy_ep(listener);
	close(tcp);
}

static void use(int port)
{
	struct sockaddr_in there = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct rdma_cm_id *id;
	char said[4] = "";
	int tcp;

	there.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
	CHECK((tcp = socket(AF_INET, SOCK_STREAM, 0)) >= 0);
	CHECK(connect(tcp, (struct sockaddr *)&there, sizeof there) == 0);
	CHECK(read(tcp, said, 3) == 3 && strcmp(said, "tcp") == 0);
	close(tcp);
	id = endpoint("127.0.0.1", port, 0);
	CHECK(rdma_connect(id, NULL) == 0);
	CHECK(memcmp(id->event->param.conn.private_data, "rdma", 4) == 0);
	CHECK(rdma_get_dst_port(id) == htons(port));
	CHECK(rdma_disconnect(id) == 0);
	rdma_destroy_ep(id);
}

int main(void)
{
	static const char *const addresses[] = { "127.0.0.1", "0.0.0.0" };
	int tcp_first, status, port, told[2];
	unsigned int at;
	pid_t server;

	for (at = 0; at < 2; at++) {
		for (tcp_first = 0; tcp_first < 2; tcp_first++) {
			CHECK(pipe(told) == 0);
			CHECK((server = fork()) >= 0);
			if (!server) {
				serve(addresses[at], tcp_first, told[1]);
				return 0;
			}
			close(told[1]);
			CHECK(read(told[0], &port, sizeof port) == sizeof port);
			close(told[0]);
			use(port);
			CHECK(waitpid(server, &status, 0) == server && status == 0);
		}
	}
	return 0;
}
