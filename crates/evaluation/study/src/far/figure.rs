//! Figures of points about shared memory, from the reports of clients and of the middlebox.

use doorbell_farmem::workload::{Report, Side};
use doorbell_record::{Figure, Figures, PointResult, StorePoint};
use doorbell_steer::Order;

/// Converts the order in which a middlebox saw answers to figures of a record.
pub fn order_figures(order: &Order) -> Figures {
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    Figures::from([
        (Figure::InOrder, percent(order.in_order, order.answers)),
        (Figure::LargestGap, order.largest_gap as f64),
        (Figure::MeanGap, order.gaps as f64 / order.answers.max(1) as f64),
        (Figure::SameAddressOutOfOrder, percent(order.late, order.answered)),
    ])
}

/// Returns the result of a point about the store. `cores` is the CPU time of the memory node and of a client in busy
/// cores, if known.
pub fn store_result(point: &StorePoint, report: &Report, cores: Option<[f64; 2]>) -> PointResult {
    let mut far = Figures::new();
    let mut side = |side: &Side, [p50, p99, p999, attempts, success, at_once]: [Figure; 6]| {
        if side.latency_ns.is_empty() {
            return;
        }
        let us = |quantile: f64| side.latency_ns.value_at_quantile(quantile) as f64 / 1e3;
        far.extend([(p50, us(0.5)), (p99, us(0.99)), (p999, us(0.999))]);
        // If another client has combined the operation with one of its own operations, this client makes no
        // attempt.
        if side.attempts.attempts > 0 {
            far.extend([
                (attempts, side.attempts_per_operation()),
                (success, side.success_percent()),
                (at_once, side.at_once_percent()),
            ]);
        }
    };
    use Figure::{GetAtOnce, GetAttempts, GetMedian, GetP99, GetP999, GetSuccess};
    use Figure::{PutAtOnce, PutAttempts, PutMedian, PutP99, PutP999, PutSuccess};
    side(&report.gets, [GetMedian, GetP99, GetP999, GetAttempts, GetSuccess, GetAtOnce]);
    side(&report.puts, [PutMedian, PutP99, PutP999, PutAttempts, PutSuccess, PutAtOnce]);
    if let Some(bytes) = report.bytes_per_operation {
        far.insert(Figure::BytesPerOperation, bytes);
        far.insert(Figure::BytesOverLeast, bytes / report.least_bytes_per_operation);
    }
    far.insert(Figure::ClientFairness, report.fairness);
    if let Some([memory, client]) = cores {
        far.extend([(Figure::MemoryCores, memory), (Figure::ClientCores, client)]);
    }
    far.retain(|_, value| value.is_finite());
    PointResult {
        bytes: point.value_bytes,
        messages: report.operations,
        seconds: point.measure_us / 1e6,
        messages_per_s: report.operations_per_s,
        bytes_per_s: report.operations_per_s * point.value_bytes as f64,
        far,
        ..PointResult::default()
    }
}
