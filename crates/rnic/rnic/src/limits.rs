//! Limits of every device.

use doorbell_verbs_core::Limits;

/// Limits of every device.
pub const LIMITS: Limits = Limits {
    max_qps: 1 << 16,
    max_queue_depth: 1 << 15,
    max_sges: 32,
    max_inline: 1024,
    max_cqs: 1 << 16,
    max_cq_depth: 1 << 22,
    max_srqs: 1 << 16,
    max_rd_atomic: 16,
    max_regions: 1 << 20,
    // The limit does not apply to regions that are paged on demand.
    max_region_bytes: 1 << 46,
    max_windows: 1 << 20,
    max_groups: 64,
};
