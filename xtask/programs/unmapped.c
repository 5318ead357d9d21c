/* Memory that a program unmaps too early, with `doorbell run --check-memory`: the work requests that
 * need it end with errors, and the program goes on. */
#include "common.h"

int main(void)
{
	static const enum ibv_wc_status wanted[] = { IBV_WC_REM_ACCESS_ERR, IBV_WC_LOC_PROT_ERR };

	open_device();
	for (int local = 0; local < 2; local++) {
		char *memory = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
		struct ibv_qp *a = create_qp(cq, NULL, IBV_QPT_RC, 4), *b = create_qp(cq, NULL, IBV_QPT_RC, 4);
		struct ibv_mr *mr;
		char *from = memory + (local ? 4096 : 0), *to = memory + (local ? 0 : 4096);

		CHECK(memory != MAP_FAILED && cq);
		CHECK((mr = ibv_reg_mr(pd, memory, 8192, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)));
		connect_pair(a, b);
		CHECK(post(a, IBV_WR_RDMA_WRITE, 1, mr, from, 8, mr, to) == 0);
		CHECK(next_completion(cq).status == IBV_WC_SUCCESS);
		CHECK(munmap(memory + 4096, 4096) == 0);
		CHECK(post(a, IBV_WR_RDMA_WRITE, 2, mr, from, 8, mr, to) == 0);
		CHECK(next_completion(cq).status == wanted[local]);
		CHECK(ibv_destroy_qp(a) == 0 && ibv_destroy_qp(b) == 0);
		CHECK(ibv_destroy_cq(cq) == 0 && ibv_dereg_mr(mr) == 0);
		CHECK(munmap(memory, 4096) == 0);
	}
	close_device();
	return 0;
}
