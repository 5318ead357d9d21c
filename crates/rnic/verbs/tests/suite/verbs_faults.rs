//! Faults of calls, posts and completions, and clients that handle them, over both links.

use doorbell_verbs_conformance::common;

use common::*;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{
    AsyncEvent, Device, Error, MemoryKind, ModifyError, Notify, PostErrorKind, QpState, SendOperation, Status,
};

/// Returns two devices, of which the first has faults.
fn devices(link: LinkChoice, plan: &str) -> (Device, Device) {
    let open = |faults: Option<&str>| {
        let faults = faults.map(|plan| plan.parse().unwrap());
        open_soft(SoftOptions { link: Some(link), faults, ..SoftOptions::default() })
    };
    (open(Some(plan)), open(None))
}

const LINKS: [LinkChoice; 2] = [LinkChoice::Udp, LinkChoice::Shm];

/// Number of messages of a client.
const MESSAGES: u64 = 8;

/// Sends messages that the peer receives. Returns the statuses of the sends.
fn send_all(a: &Side, b: &Side) -> Vec<Status> {
    let (from, to) = (a.memory(64), b.memory(64));
    for number in 0..MESSAGES {
        b.post_recv(number, &[to.sge(0, 64)]);
    }
    for number in 0..MESSAGES {
        a.post(number, SendOperation::Send, &[from.sge(0, 64)]);
    }
    let completions = a.reap(MESSAGES as usize);
    assert!((0..).zip(&completions).all(|(number, completion)| completion.wr_id == number), "{completions:?}");
    completions.iter().map(|completion| completion.status).collect()
}

/// Rebuilds the injected error completions of ROCm/rocm-systems#6948 and meta-pytorch/torchcomms#4145.
#[test]
fn a_client_replaces_a_queue_pair_after_a_bad_completion() {
    for link in LINKS {
        let devices = devices(link, "completion operation=send nth=3 status=rem-access-err");
        let (a, b) = Plan::rc().connect(&devices);
        let (good, bad) = (Status::Success, Status::WorkRequestFlushed);
        let expected = [good, good, Status::RemoteAccess, bad, bad, bad, bad, bad];
        assert_eq!(send_all(&a, &b), expected, "{link:?}");
        assert_eq!(a.state(), QpState::Error);
        // A post to the dead queue pair is flushed too.
        a.post(MESSAGES, SendOperation::Send, &[]);
        a.expect_failure(MESSAGES, bad);
        drop((a, b));
        let (a, b) = Plan::rc().connect(&devices);
        assert_eq!(send_all(&a, &b), [good; MESSAGES as usize], "{link:?}");
        assert_eq!(b.reap(MESSAGES as usize).len(), MESSAGES as usize);
    }
}

/// Rebuilds the injected errors of posts of ROCm/rocm-systems#6948 and meta-pytorch/torchcomms#4145.
#[test]
fn a_client_posts_the_rest_after_a_refused_post() {
    for link in LINKS {
        let plan = "post-error operation=write nth=3 errno=ENOMEM;post-error operation=receive nth=2 errno=EINVAL";
        let (a, b) = Plan::rc().connect(&devices(link, plan));
        let (from, to) = (a.patterned(32, 1), b.memory(32));
        let sges: Vec<_> = (0..4).map(|place| [from.sge(8 * place, 8)]).collect();
        let writes: Vec<_> =
            (0..4).map(|place| signalled(place as u64, write_to(&to, 8 * place), &sges[place])).collect();
        let refused = a.qp.post_send(&writes).unwrap_err();
        assert_eq!((refused.index, refused.kind), (2, PostErrorKind::Refused { errno: 12 }), "{link:?}");
        a.qp.post_send(&writes[refused.index..]).unwrap();
        (0..4).for_each(|number| _ = a.expect(number));
        assert_bytes(&to, 0, &pattern(32, 1), "the four WRITEs");
        a.post_recv(0, &[]);
        let refused = a.qp.post_recv(&[doorbell_verbs::RecvRequest { wr_id: 1, sges: &[] }]).unwrap_err();
        assert_eq!(refused.kind, PostErrorKind::Refused { errno: 22 });
        a.post_recv(1, &[]);
    }
}

/// Rebuilds the injected errors of calls of ROCm/rocm-systems#6948 and meta-pytorch/torchcomms#4145.
#[test]
fn refused_calls_have_their_errno() {
    let plan = "call-error call=reg-mr nth=1 errno=ENOMEM;call-error call=create-qp nth=2 errno=EAGAIN;\
                call-error call=modify-qp qp-order=1 nth=2 errno=ETIMEDOUT";
    let (device, _) = devices(LinkChoice::Udp, plan);
    let pd = device.create_pd().unwrap();
    let errno = |error: Error| match error {
        Error::Os { what, error } => (what, error.raw_os_error()),
        other => panic!("{other}"),
    };
    let refused = pd.allocate(64, ALL_ACCESS, MemoryKind::Plain).unwrap_err();
    assert_eq!(errno(refused), ("the fault plan refuses ibv_reg_mr", Some(12)));
    pd.allocate(64, ALL_ACCESS, MemoryKind::Plain).unwrap();
    let plan = Plan::rc();
    let cq = device.create_cq(16).unwrap();
    let first = plan.side_on(&pd, &cq, None);
    let options = doorbell_verbs::QpOptions {
        kind: plan.kind,
        send_cq: &cq,
        recv_cq: &cq,
        srq: None,
        capacities: plan.capacities(),
        signal_all: false,
    };
    let refused = pd.create_qp(options).unwrap_err();
    assert_eq!(errno(refused), ("the fault plan refuses ibv_create_qp", Some(11)));
    let third = plan.side_on(&pd, &cq, None);
    third.qp.modify(&plan.to_init()).unwrap();
    first.qp.modify(&plan.to_init()).unwrap();
    third.qp.modify(&to_state(QpState::Error)).unwrap();
    let refused = first.qp.modify(&to_state(QpState::Error)).unwrap_err();
    assert_eq!(refused, ModifyError::Refused { errno: 110 });
    assert_eq!(first.state(), QpState::Init);
    first.qp.modify(&to_state(QpState::Error)).unwrap();
}

#[test]
fn a_slow_completion_wakes_the_thread_that_waits_for_it() {
    for link in LINKS {
        let devices = devices(link, "slow-poll operation=receive nth=1 for=20ms");
        let plan = Plan::rc();
        let channel = devices.0.create_channel().unwrap();
        let cq = devices.0.create_cq_on(16, &channel).unwrap();
        let a = plan.side_on(&devices.0.create_pd().unwrap(), &cq, None);
        let b = plan.side(&devices.1);
        plan.join(&a, &b);
        a.post_recv(1, &[]);
        cq.arm(Notify::Next);
        b.post(2, SendOperation::Send, &[]);
        b.expect(2);
        assert!(channel.wait(Some(PATIENCE)).unwrap(), "{link:?}: no notification");
        assert_eq!(channel.next(), Some(cq.id()));
        a.expect(1);
    }
}

#[test]
fn an_event_of_a_plan_reaches_the_program() {
    for link in LINKS {
        let (a, b) = Plan::rc().connect(&devices(link, "event operation=send nth=1 event=qp-access-err"));
        assert_eq!(send_all(&a, &b)[0], Status::Success);
        assert_eq!(a.device.poll_event(), Some(AsyncEvent::QpAccessError(a.qp.qpn())), "{link:?}");
        assert_eq!(a.state(), QpState::Error);
    }
}
