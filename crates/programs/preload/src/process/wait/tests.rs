//! Tests of cancellation and signals in calls that wait.

mod callers;

use std::ffi::c_int;
use std::io::{Read as _, Write as _};
use std::ptr;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};
use std::time::Instant;

use doorbell_ibverbs_sys as c;

use super::{CANCEL_ENABLE, LACKS_WAITV, NUMBER, Step, Turn, Unacknowledged};
use super::{as_if_asleep, in_steps, pthread_setcancelstate};
use crate::cm::testing as cm;
use crate::objects::context::{ibv_close_device, ibv_open_device};
use crate::objects::cq::{self, Cq, ibv_create_comp_channel, ibv_create_cq, ibv_destroy_comp_channel, ibv_destroy_cq};
use crate::objects::cq::{ibv_ack_cq_events, ibv_get_cq_event};
use crate::objects::device::{ibv_free_device_list, ibv_get_device_list};
use crate::objects::event::{Element, Source, ibv_ack_async_event, ibv_get_async_event};
use crate::objects::handle::object;
use crate::objects::pd::{ibv_alloc_pd, ibv_dealloc_pd};
use crate::objects::qp::{Qp, ibv_create_qp, ibv_destroy_qp, ibv_modify_qp};
use crate::objects::srq::{Srq, ibv_create_srq, ibv_destroy_srq};
use crate::objects::{context, post};
use crate::process::fork::is_inside;
use callers::{Caller, PATIENCE, SharedPointer, cancelled_anyhow, cancelled_asleep, ends_without_its_descriptor};

/// A context and the objects that most tests need.
struct Opened {
    context: SharedPointer<c::ibv_context>,
    pd: SharedPointer<c::ibv_pd>,
    channel: SharedPointer<c::ibv_comp_channel>,
    cq: SharedPointer<c::ibv_cq>,
}

impl Opened {
    fn new() -> Self {
        // SAFETY: each object was just created.
        unsafe {
            let list = ibv_get_device_list(ptr::null_mut());
            let context = SharedPointer::new(ibv_open_device(*list));
            ibv_free_device_list(list);
            let pd = SharedPointer::new(ibv_alloc_pd(context.get()));
            let channel = SharedPointer::new(ibv_create_comp_channel(context.get()));
            let cq = SharedPointer::new(ibv_create_cq(context.get(), 8, ptr::null_mut(), channel.get(), 0));
            Self { context, pd, channel, cq }
        }
    }

    fn qp(&self) -> *mut c::ibv_qp {
        let cap =
            c::ibv_qp_cap { max_send_wr: 4, max_recv_wr: 4, max_send_sge: 1, max_recv_sge: 1, max_inline_data: 0 };
        let cq = self.cq.get();
        let mut init = c::ibv_qp_init_attr {
            send_cq: cq,
            recv_cq: cq,
            cap,
            qp_type: c::IBV_QPT_RC,
            ..c::ibv_qp_init_attr::default()
        };
        // SAFETY: the protection domain and the completion queue exist.
        unsafe { ibv_create_qp(self.pd.get(), &raw mut init) }
    }

    /// Adds one completion to the queue. The completion adds one notification to the channel.
    fn notify(&self) {
        // SAFETY: the queue exists.
        unsafe {
            assert_eq!(cq::req_notify_cq(self.cq.get(), 0), 0);
            let qp = self.qp();
            flush_one_receive(qp);
            let mut completion = c::ibv_wc::default();
            assert_eq!(cq::poll_cq(self.cq.get(), 1, &raw mut completion), 1);
            assert_eq!(completion.status, c::IBV_WC_WR_FLUSH_ERR);
            assert_eq!(ibv_destroy_qp(qp), 0);
        }
    }

    fn get_cq_event(&self) -> c_int {
        let (mut cq, mut context) = (ptr::null_mut(), ptr::null_mut());
        // SAFETY: the channel and the queue of the event exist.
        unsafe { ibv_get_cq_event(self.channel.get(), &raw mut cq, &raw mut context) }
    }

    fn get_async_event(&self) -> c_int {
        let mut event = std::mem::MaybeUninit::<c::ibv_async_event>::uninit();
        // SAFETY: the context exists, and the pointer refers to memory for the event.
        unsafe { ibv_get_async_event(self.context.get(), event.as_mut_ptr()) }
    }

    fn close(self) {
        // SAFETY: no other code uses these objects any more.
        unsafe {
            assert_eq!(ibv_destroy_cq(self.cq.get()), 0);
            assert_eq!(ibv_destroy_comp_channel(self.channel.get()), 0);
            assert_eq!(ibv_dealloc_pd(self.pd.get()), 0);
            assert_eq!(ibv_close_device(self.context.get()), 0);
        }
    }
}

/// # Safety
///
/// `qp` is a queue pair that was just created.
unsafe fn flush_one_receive(qp: *mut c::ibv_qp) {
    let mut attr = c::ibv_qp_attr { qp_state: c::IBV_QPS_INIT, port_num: 1, ..c::ibv_qp_attr::default() };
    let mask = c::IBV_QP_STATE | c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_ACCESS_FLAGS;
    let (mut receive, mut bad) = (c::ibv_recv_wr::default(), ptr::null_mut());
    // SAFETY: the caller guarantees that the queue pair is new. The receive has no elements.
    unsafe {
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, mask as c_int), 0);
        assert_eq!(post::post_recv(qp, &raw mut receive, &raw mut bad), 0);
        attr.qp_state = c::IBV_QPS_ERR;
        assert_eq!(ibv_modify_qp(qp, &raw mut attr, c::IBV_QP_STATE as c_int), 0);
    }
}

#[test]
fn a_thread_that_waits_for_a_notification_can_be_cancelled_and_none_is_lost() {
    let own = Opened::new();
    for _ in 0..20 {
        cancelled_anyhow(&|| own.get_cq_event());
        own.notify();
        assert_eq!(own.get_cq_event(), 0);
        // SAFETY: the queue exists.
        unsafe { ibv_ack_cq_events(own.cq.get(), 1) };
    }
    own.close();
}

#[test]
fn a_program_may_change_o_nonblock_between_two_waits() {
    let own = Opened::new();
    // SAFETY: the channel exists, and the calls change only flags of its descriptor.
    let set = |flags: c_int| unsafe { assert_eq!(libc::fcntl((*own.channel.get()).fd, libc::F_SETFL, flags), 0) };
    let waits = || {
        let call = || own.get_cq_event();
        let caller = Caller::start(&call, false);
        caller.sleeps();
        own.notify();
        assert_eq!(caller.join().map(|(result, _)| result), Some(0));
        // SAFETY: the queue exists.
        unsafe { ibv_ack_cq_events(own.cq.get(), 1) };
    };
    for _ in 0..2 {
        waits();
        waits(); // the last check allowed waiting, so this call checks only before it sleeps
        set(libc::O_NONBLOCK);
        for _ in 0..3 {
            assert_eq!(own.get_cq_event(), -1);
            // SAFETY: each thread has its own `errno`.
            assert_eq!(unsafe { *libc::__errno_location() }, libc::EAGAIN);
        }
        set(0);
    }
    own.close();
}

#[test]
fn a_thread_that_waits_for_an_asynchronous_event_can_be_cancelled() {
    let own = Opened::new();
    cancelled_anyhow(&|| own.get_async_event());
    // SAFETY: the context and the queue exist. The event exists until it is acknowledged.
    unsafe {
        let context = context::Context::of(own.context.get()).unwrap();
        Source::new(Element::Cq(own.cq.get()), context).raise(c::IBV_EVENT_CQ_ERR);
        let mut event = std::mem::MaybeUninit::<c::ibv_async_event>::uninit();
        assert_eq!(ibv_get_async_event(own.context.get(), event.as_mut_ptr()), 0);
        ibv_ack_async_event(event.as_mut_ptr());
    }
    own.close();
}

#[test]
fn a_thread_that_waits_for_acknowledgements_can_be_cancelled() {
    let own = Opened::new();
    let mut init = c::ibv_srq_init_attr::default();
    (init.attr.max_wr, init.attr.max_sge) = (1, 1);
    // SAFETY: the objects exist until the test destroys them.
    unsafe {
        let (qp, srq) = (SharedPointer::new(own.qp()), SharedPointer::new(ibv_create_srq(own.pd.get(), &raw mut init)));
        let cq = SharedPointer::new(ibv_create_cq(own.context.get(), 1, ptr::null_mut(), own.channel.get(), 0));
        let waits = |events: &Unacknowledged, destroy: &(dyn Fn() -> c_int + Sync)| {
            events.add();
            cancelled_asleep(destroy);
            // The cancelled call has released the lock and has not changed the object.
            assert!(events.is_free(), "the cancelled call still holds the lock");
            events.acknowledge(1);
            assert_eq!(destroy(), 0);
        };
        waits(&object::<Qp>(qp.get()).unwrap().unacknowledged, &|| ibv_destroy_qp(qp.get()));
        waits(&object::<Srq>(srq.get()).unwrap().unacknowledged, &|| ibv_destroy_srq(srq.get()));
        waits(&object::<Cq>(cq.get()).unwrap().unacknowledged, &|| ibv_destroy_cq(cq.get()));
    }
    own.close();
}

#[test]
fn a_destroying_call_waits_for_the_last_acknowledgement() {
    let own = Opened::new();
    // SAFETY: the queue pair exists until it is destroyed.
    unsafe {
        let qp = SharedPointer::new(own.qp());
        let events = &object::<Qp>(qp.get()).unwrap().unacknowledged;
        events.add();
        events.add();
        let destroy = || ibv_destroy_qp(qp.get());
        let caller = Caller::start(&destroy, false);
        caller.sleeps();
        events.acknowledge(1);
        caller.sleeps();
        events.acknowledge(1);
        assert_eq!(caller.join().map(|(result, _)| result), Some(0));
    }
    own.close();
}

#[test]
fn a_call_that_does_not_wait_is_not_cancelled_in_the_middle() {
    let everything = || {
        let own = Opened::new();
        for _ in 0..10 {
            own.notify();
        }
        own.close();
        0
    };
    // A cancellation is pending from the beginning. Any cancellation point within the calls would act on the
    // cancellation, which may act only after the last call.
    assert_eq!(Caller::start(&everything, true).join().map(|(result, _)| result), Some(0));
}

/// Brings a queue pair to the state in which it can send to another queue pair of the same device.
///
/// # Safety
///
/// Both queue pairs exist, and `qp` was just created.
unsafe fn connect(own: &Opened, qp: *mut c::ibv_qp, peer: *mut c::ibv_qp) {
    let mut attr = c::ibv_qp_attr {
        port_num: 1,
        path_mtu: c::IBV_MTU_1024,
        max_dest_rd_atomic: 1,
        max_rd_atomic: 1,
        min_rnr_timer: 12,
        timeout: 18,
        retry_cnt: 7,
        rnr_retry: 7,
        ..c::ibv_qp_attr::default()
    };
    (attr.ah_attr.is_global, attr.ah_attr.port_num, attr.ah_attr.grh.hop_limit) = (1, 1, 1);
    let init = c::IBV_QP_PKEY_INDEX | c::IBV_QP_PORT | c::IBV_QP_ACCESS_FLAGS;
    let path = c::IBV_QP_AV | c::IBV_QP_PATH_MTU | c::IBV_QP_DEST_QPN | c::IBV_QP_RQ_PSN;
    let to_receive = path | c::IBV_QP_MAX_DEST_RD_ATOMIC | c::IBV_QP_MIN_RNR_TIMER;
    let retries = c::IBV_QP_TIMEOUT | c::IBV_QP_RETRY_CNT | c::IBV_QP_RNR_RETRY;
    let to_send = c::IBV_QP_SQ_PSN | retries | c::IBV_QP_MAX_QP_RD_ATOMIC;
    // SAFETY: the caller guarantees that both queue pairs exist.
    unsafe {
        let context = context::Context::of(own.context.get()).unwrap();
        attr.ah_attr.grh.dgid.raw = context.device.attributes.gid.octets();
        attr.dest_qp_num = (*peer).qp_num;
        for (state, mask) in [(c::IBV_QPS_INIT, init), (c::IBV_QPS_RTR, to_receive), (c::IBV_QPS_RTS, to_send)] {
            attr.qp_state = state;
            assert_eq!(ibv_modify_qp(qp, &raw mut attr, (c::IBV_QP_STATE | mask) as c_int), 0);
        }
    }
}

/// Sends a message from one queue pair to another, and polls both completions. The second completion causes a
/// notification.
///
/// # Safety
///
/// `a` and `b` are connected, and use the completion queue of `own`.
unsafe fn exchange(own: &Opened, a: *mut c::ibv_qp, b: *mut c::ibv_qp) {
    let (mut receive, mut bad_receive) = (c::ibv_recv_wr::default(), ptr::null_mut());
    let (mut send, mut bad_send) = (c::ibv_send_wr::default(), ptr::null_mut());
    (send.opcode, send.send_flags) = (c::IBV_WR_SEND, c::IBV_SEND_SIGNALED | c::IBV_SEND_SOLICITED);
    // SAFETY: the caller guarantees that `a` and `b` are connected. Neither request has elements.
    unsafe {
        assert_eq!(cq::req_notify_cq(own.cq.get(), 1), 0);
        assert_eq!(post::post_recv(b, &raw mut receive, &raw mut bad_receive), 0);
        assert_eq!(post::post_send(a, &raw mut send, &raw mut bad_send), 0);
        // The library rejects an invalid request, and explains the rejection if the user requested explanations.
        send.opcode = 77;
        assert_eq!(post::post_send(a, &raw mut send, &raw mut bad_send), libc::EINVAL);
        let mut completions = [c::ibv_wc::default(); 2];
        let (mut found, until) = (0, Instant::now() + PATIENCE);
        while found < 2 && Instant::now() < until {
            found += cq::poll_cq(own.cq.get(), 1, &raw mut completions[found as usize]);
        }
        assert_eq!(found, 2);
        assert!(completions.iter().all(|completion| completion.status == c::IBV_WC_SUCCESS));
    }
}

/// Posting and polling do not disable cancellation, since changing the thread's cancellation state would cost time. So
/// posting and polling must contain no cancellation point.
#[test]
fn posting_and_polling_are_not_cancelled_in_the_middle() {
    let own = Opened::new();
    let [a, b] = [0, 1].map(|_| SharedPointer::new(own.qp()));
    // SAFETY: the queue pairs exist until the test destroys them.
    unsafe {
        connect(&own, a.get(), b.get());
        connect(&own, b.get(), a.get());
        let messages = || {
            for _ in 0..50 {
                exchange(&own, a.get(), b.get());
            }
            0
        };
        assert_eq!(Caller::start(&messages, true).join().map(|(result, _)| result), Some(0));
        for _ in 0..50 {
            assert_eq!(own.get_cq_event(), 0, "each exchange must add a notification");
        }
        ibv_ack_cq_events(own.cq.get(), 50);
        assert_eq!((ibv_destroy_qp(a.get()), ibv_destroy_qp(b.get())), (0, 0));
    }
    own.close();
}

#[test]
fn threads_that_wait_for_connections_can_be_cancelled() {
    let channel = SharedPointer::new(cm::rdma_create_event_channel());
    let get_event = || {
        let mut event = ptr::null_mut();
        // SAFETY: the channel exists.
        unsafe { cm::rdma_get_cm_event(channel.get(), &raw mut event) }
    };
    cancelled_anyhow(&get_event);
    let (listener, port) = cm::synchronous_listener();
    let listener = SharedPointer::new(listener);
    let get_request = || {
        let mut id = ptr::null_mut();
        // SAFETY: the listener exists.
        unsafe { cm::rdma_get_request(listener.get(), &raw mut id) }
    };
    cancelled_anyhow(&get_request);
    // The listener still works. A bare peer sends a request, and does not confirm that the listener accepted it.
    let mut peer = cm::Transport::Unix.call(port);
    peer.write_all(&cm::request()).unwrap();
    let mut id = ptr::null_mut();
    // SAFETY: the listener exists. The ids exist until the test destroys them.
    unsafe {
        assert_eq!(cm::rdma_get_request(listener.get(), &raw mut id), 0);
        let server = SharedPointer::new(id);
        let accept = || {
            let mut param = c::rdma_conn_param { qp_num: 1, ..c::rdma_conn_param::default() };
            cm::rdma_accept(server.get(), &raw mut param)
        };
        cancelled_asleep(&accept);
        assert_eq!(cm::rdma_destroy_id(server.get()), 0);

        // This listener never answers.
        let silent = cm::BareListener::new(cm::Transport::Unix);
        let client = SharedPointer::new(cm::synchronously_resolved(silent.port));
        let connect = || {
            let mut param = c::rdma_conn_param { qp_num: 1, ..c::rdma_conn_param::default() };
            cm::rdma_connect(client.get(), &raw mut param)
        };
        cancelled_anyhow(&connect);
        let mut asked = [0; 8];
        silent.accept().read_exact(&mut asked).unwrap();
        assert_eq!(&asked[..4], b"DBcm");
        assert_eq!(cm::rdma_destroy_id(client.get()), 0);
        assert_eq!(cm::rdma_destroy_id(listener.get()), 0);

        // Destroying an id waits while the id has an unacknowledged event.
        let mut id = ptr::null_mut();
        assert_eq!(cm::rdma_create_id(channel.get(), &raw mut id, ptr::null_mut(), c::RDMA_PS_TCP), 0);
        let id = SharedPointer::new(id);
        let mut event = ptr::null_mut();
        cm::resolve(id.get(), port);
        assert_eq!(cm::rdma_get_cm_event(channel.get(), &raw mut event), 0);
        let other = SharedPointer::new(cm::rdma_create_event_channel());
        cancelled_anyhow(&|| cm::rdma_migrate_id(id.get(), other.get()));
        cancelled_asleep(&|| cm::rdma_destroy_id(id.get()));
        assert_eq!(cm::rdma_ack_cm_event(event), 0);
        assert_eq!(cm::rdma_destroy_id(id.get()), 0);
        cm::rdma_destroy_event_channel(channel.get());
        cm::rdma_destroy_event_channel(other.get());
    }
}

/// Lock of the process's signal handlers, so that one test at a time uses them.
static HANDLERS: Mutex<()> = Mutex::new(());

/// Number of signals that the handler has counted.
static HANDLED: AtomicUsize = AtomicUsize::new(0);

extern "C" fn count_signal(_: c_int) {
    HANDLED.fetch_add(1, Ordering::SeqCst);
}

/// Installs the counting handler with these flags.
fn handle(flags: c_int) {
    handle_with(count_signal, flags);
}

fn handle_with(handler: extern "C" fn(c_int), flags: c_int) {
    // SAFETY: zeros are a valid action without flags and mask. The handlers of these tests call no function that is
    // forbidden in a handler.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = handler as usize;
        action.sa_flags = flags;
        assert_eq!(libc::sigaction(libc::SIGUSR1, &raw const action, ptr::null_mut()), 0);
    }
}

/// Checks that a signal ends the wait of a call only if the signal's handler lacks SA_RESTART.
fn interrupted_or_restarted(call: &(dyn Fn() -> c_int + Sync), end: &dyn Fn()) {
    let _alone = HANDLERS.lock().unwrap();
    handle(0);
    let caller = Caller::start(call, false);
    caller.sleeps();
    caller.signal(libc::SIGUSR1);
    assert_eq!(caller.join(), Some((-1, libc::EINTR)), "a handler without SA_RESTART must interrupt the call");
    handle(libc::SA_RESTART);
    let caller = Caller::start(call, false);
    for _ in 0..10 {
        caller.sleeps();
        let before = HANDLED.load(Ordering::SeqCst);
        caller.signal(libc::SIGUSR1);
        let until = Instant::now() + PATIENCE;
        while HANDLED.load(Ordering::SeqCst) == before {
            assert!(Instant::now() < until, "the signal has not arrived");
            std::thread::yield_now();
        }
    }
    caller.sleeps();
    end();
    let ended = caller.join();
    assert_eq!(
        ended.map(|(result, _)| result),
        Some(0),
        "a handler with SA_RESTART must not interrupt the call: {ended:?}"
    );
}

#[test]
fn a_signal_interrupts_the_wait_for_a_notification_as_its_handler_says() {
    let own = Opened::new();
    interrupted_or_restarted(&|| own.get_cq_event(), &|| own.notify());
    // SAFETY: the queue exists.
    unsafe { ibv_ack_cq_events(own.cq.get(), 1) };
    own.close();
}

#[test]
fn a_signal_interrupts_the_wait_for_an_asynchronous_event_as_its_handler_says() {
    let own = Opened::new();
    // SAFETY: the context and the queue exist.
    let raise = || unsafe {
        let context = context::Context::of(own.context.get()).unwrap();
        Source::new(Element::Cq(own.cq.get()), context).raise(c::IBV_EVENT_CQ_ERR);
    };
    interrupted_or_restarted(&|| own.get_async_event(), &raise);
    // SAFETY: the queue exists, and its event was retrieved.
    unsafe { object::<Cq>(own.cq.get()).unwrap().unacknowledged.acknowledge(1) };
    own.close();
}

#[test]
fn a_signal_interrupts_the_wait_for_an_event_of_a_connection_as_its_handler_says() {
    let channel = SharedPointer::new(cm::rdma_create_event_channel());
    let mut id = ptr::null_mut();
    // SAFETY: the channel exists. The id and the event exist until the test releases them.
    unsafe {
        assert_eq!(cm::rdma_create_id(channel.get(), &raw mut id, ptr::null_mut(), c::RDMA_PS_TCP), 0);
        let event = SharedPointer(AtomicPtr::new(ptr::null_mut()));
        let get = || {
            let mut place = ptr::null_mut();
            let result = cm::rdma_get_cm_event(channel.get(), &raw mut place);
            event.0.store(place, Ordering::SeqCst);
            result
        };
        interrupted_or_restarted(&get, &|| cm::resolve(id, 1));
        assert_eq!(cm::rdma_ack_cm_event(event.get()), 0);
        assert_eq!(cm::rdma_destroy_id(id), 0);
        cm::rdma_destroy_event_channel(channel.get());
    }
}

#[test]
fn handlers_end_or_restart_waits_on_older_kernels() {
    let own = Opened::new();
    LACKS_WAITV.store(true, Ordering::Relaxed);
    interrupted_or_restarted(&|| own.get_cq_event(), &|| own.notify());
    cancelled_anyhow(&|| own.get_cq_event());
    LACKS_WAITV.store(false, Ordering::Relaxed);
    // SAFETY: the queue exists.
    unsafe { ibv_ack_cq_events(own.cq.get(), 1) };
    own.close();
}

#[test]
fn calls_that_wait_end_when_the_program_has_closed_their_descriptors() {
    let own = Opened::new();
    let channel = SharedPointer::new(cm::rdma_create_event_channel());
    let get_cm_event = || {
        let mut event = ptr::null_mut();
        // SAFETY: the channel exists.
        unsafe { cm::rdma_get_cm_event(channel.get(), &raw mut event) }
    };
    // SAFETY: all objects exist.
    let (of_queue, of_context, of_connections) =
        unsafe { ((*own.channel.get()).fd, (*own.context.get()).async_fd, (*channel.get()).fd) };
    ends_without_its_descriptor(&|| own.get_cq_event(), of_queue);
    ends_without_its_descriptor(&|| own.get_async_event(), of_context);
    ends_without_its_descriptor(&get_cm_event, of_connections);
    // SAFETY: no id reports to the channel.
    unsafe { cm::rdma_destroy_event_channel(channel.get()) };
    own.close();
}

#[test]
fn a_signal_counts_while_the_device_is_driven_before_the_sleep() {
    let _alone = HANDLERS.lock().unwrap();
    let handled = || HANDLED.load(Ordering::SeqCst);
    // SAFETY: the handler of the signal only counts.
    let raised = |found| move || unsafe { libc::raise(libc::SIGUSR1) == 0 && found };
    let raise = |found| as_if_asleep(raised(found)).handle();
    handle(0);
    let before = handled();
    assert_eq!(raise(false), Turn::Lingered { interrupted: true });
    assert_eq!(handled(), before + 1);
    assert_eq!(raise(true), Turn::First, "a completed wait must succeed despite the signal");
    assert_eq!(handled(), before + 2);
    handle(libc::SA_RESTART);
    assert_eq!(raise(false), Turn::Lingered { interrupted: false });
    assert_eq!(handled(), before + 3);
    assert_eq!(as_if_asleep(|| false).handle(), Turn::Lingered { interrupted: false });
}

/// Whether the handler [`look`] ran while its thread could be cancelled and was outside the gate for forks.
static RAN_FREE: AtomicBool = AtomicBool::new(false);

extern "C" fn look(_: c_int) {
    let mut before = -1;
    // SAFETY: the call changes only the state of this thread.
    unsafe { pthread_setcancelstate(CANCEL_ENABLE, &raw mut before) };
    RAN_FREE.store(before == CANCEL_ENABLE && !is_inside(), Ordering::SeqCst);
}

/// A handler may leave the call by `siglongjmp`. Then the guards of the call would stay forever.
#[test]
fn handlers_of_signals_run_while_the_call_holds_nothing() {
    let _alone = HANDLERS.lock().unwrap();
    handle_with(look, 0);
    let ended = in_steps("test", NUMBER, |turn| match turn {
        Turn::First => {
            assert!(is_inside());
            // SAFETY: the handler of the signal changes only the state of this thread.
            Ok(Step::Handle(as_if_asleep(|| unsafe { libc::raise(libc::SIGUSR1) != 0 })))
        }
        Turn::Lingered { interrupted } => Ok(Step::Done(interrupted.into())),
        _ => Ok(Step::Done(-1)),
    });
    assert_eq!(ended, 1);
    assert!(RAN_FREE.load(Ordering::SeqCst));
}

#[test]
fn a_read_without_an_event_does_not_end_the_wait() {
    let own = Opened::new();
    // Two threads wait. Either thread, or the main thread of the test, may take an event.
    let get = || own.get_cq_event();
    for _ in 0..50 {
        let callers = [Caller::start(&get, false), Caller::start(&get, false)];
        own.notify();
        own.notify();
        for caller in callers {
            assert_eq!(caller.join().map(|(result, _)| result), Some(0));
        }
        // SAFETY: the queue exists.
        unsafe { ibv_ack_cq_events(own.cq.get(), 2) };
    }
    own.close();
}
