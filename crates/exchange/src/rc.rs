//! Bringing an RC queue pair from reset to ready (IBTA Vol 1, 10.3.1), as all connections do it.

use doorbell_verbs::{Access, AddressVector, ModifyError, Qp, QpAttributes, QpState};

use crate::error::ConnectError;
use crate::setup::EndpointDescription;

/// What a queue pair is connected with.
#[derive(Clone, Copy, Debug)]
pub struct RcSettings {
    /// Acknowledgement timeout exponent: 4.096 us times two to it.
    pub timeout: u8,
    /// Times that the timeout may expire in a row.
    pub retry_count: u8,
    /// Times that an RNR NAK may come in a row; 7 is without end.
    pub rnr_retry: u8,
    /// Code of the least time that the peer is to wait after an RNR NAK.
    pub min_rnr_timer: u8,
}

/// Takes a queue pair from reset to the initial state, in which receives can be posted. `access`
/// is what the peer may do to regions that allow it too.
///
/// # Errors
///
/// The queue pair is not in the reset state, or the device refuses.
pub fn initialise(qp: &Qp, access: Access) -> Result<(), ModifyError> {
    qp.modify(&QpAttributes {
        state: Some(QpState::Init),
        pkey_index: Some(0),
        port: Some(1),
        access: Some(access),
        ..QpAttributes::default()
    })
}

/// Takes an initialised queue pair, described by `own`, to where it receives from its peer and can
/// send. READs and atomics may be outstanding in either direction as the device allows.
///
/// # Errors
///
/// The ends are on different UDP ports, or the peer's description is none that can be connected to.
pub fn connect(
    qp: &Qp,
    own: &EndpointDescription,
    peer: &EndpointDescription,
    settings: &RcSettings,
) -> Result<(), ConnectError> {
    if own.udp_port != peer.udp_port {
        let (own, peer) = (own.udp_port.into(), peer.udp_port.into());
        return Err(ConnectError::Mismatch { what: "the UDP port", own, peer });
    }
    let rd_atomic = u8::try_from(qp.pd().device().attributes().limits.max_rd_atomic).unwrap_or(u8::MAX);
    qp.modify(&QpAttributes {
        state: Some(QpState::ReadyToReceive),
        address: Some(AddressVector::to(peer.gid.to_canonical())),
        path_mtu: Some(own.path_mtu.min(peer.path_mtu)),
        dest_qpn: Some(peer.qpn),
        receive_psn: Some(peer.psn),
        max_dest_rd_atomic: Some(rd_atomic),
        min_rnr_timer: Some(settings.min_rnr_timer),
        ..QpAttributes::default()
    })?;
    qp.modify(&QpAttributes {
        state: Some(QpState::ReadyToSend),
        send_psn: Some(own.psn),
        timeout: Some(settings.timeout),
        retry_count: Some(settings.retry_count),
        rnr_retry: Some(settings.rnr_retry),
        max_rd_atomic: Some(rd_atomic),
        ..QpAttributes::default()
    })?;
    Ok(())
}
