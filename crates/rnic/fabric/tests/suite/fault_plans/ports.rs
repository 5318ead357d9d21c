//! Ports that go down and come up again, and devices that fail, by calls and by plans.

use doorbell_verbs_core::{AsyncEvent, LinkCounters, PortError, PortOrder, PortState};

use super::*;

/// Time for which the port is down, shorter than the retries of a queue pair.
const FLAP_NS: u64 = 20_000_000;

impl End {
    fn order(&mut self, now_ns: u64, order: PortOrder) {
        self.driver.order_port(now_ns, order).unwrap();
    }

    fn events(&mut self) -> Vec<AsyncEvent> {
        std::iter::from_fn(|| self.driver.rnic_mut().poll_event()).collect()
    }

    fn lost(&self) -> LinkCounters {
        self.driver.link_counters()
    }
}

impl Pair {
    /// Returns the requester or the responder.
    fn end(&mut self, is_requester: bool) -> &mut End {
        if is_requester { &mut self.requester } else { &mut self.responder }
    }
}

fn statuses(end: &End) -> Vec<Status> {
    end.reap().iter().map(|completion| completion.status).collect()
}

#[test]
fn a_connection_goes_on_if_the_port_returns_in_time() {
    for own in [true, false] {
        let mut pair = Pair::new(&FaultPlan::default());
        pair.post_all();
        let now_ns = pair.now_ns;
        pair.end(own).order(now_ns, PortOrder::Down);
        assert_eq!(pair.end(own).driver.port_state(), Ok(PortState::Down));
        pair.run_until(now_ns + FLAP_NS);
        assert_eq!(pair.requester.reap(), Vec::new(), "a request completed although the port was down");
        pair.now_ns = now_ns + FLAP_NS;
        let now_ns = pair.now_ns;
        pair.end(own).order(now_ns, PortOrder::Up);
        pair.run_until(u64::MAX);
        pair.assert_done("a port that returns");
        let expected = [AsyncEvent::PortError(1), AsyncEvent::PortActive(1), AsyncEvent::GidChange(1)];
        assert_eq!(pair.end(own).events(), expected);
        assert_eq!(pair.end(!own).events(), []);
        let lost = pair.end(own).lost();
        assert_eq!((lost.tx_port_down > 0, lost.rx_port_down > 0), (own, !own), "{lost:?}");
        assert_eq!(pair.end(!own).lost(), LinkCounters::default());
    }
}

#[test]
fn a_port_that_stays_down_ends_the_retries() {
    let mut pair = Pair::new(&FaultPlan::default());
    pair.post_all();
    let now_ns = pair.now_ns;
    pair.requester.order(now_ns, PortOrder::Down);
    pair.run_until(u64::MAX);
    let mut expected = vec![Status::WorkRequestFlushed; 6];
    expected[0] = Status::RetryExceeded;
    assert_eq!(statuses(&pair.requester), expected);
    assert_eq!(pair.responder.reap(), Vec::new(), "a packet left although the port was down");
    // The port returns too late: the program has to connect again.
    let now_ns = pair.now_ns;
    pair.requester.order(now_ns, PortOrder::Up);
    for end in [&mut pair.requester, &mut pair.responder] {
        let reset = QpAttributes { state: Some(QpState::Reset), ..QpAttributes::default() };
        end.driver.rnic_mut().modify_qp(end.qpn, &reset).unwrap();
    }
    pair.connect(Psn::new(0x7f_0000));
    pair.post_all();
    pair.run_until(u64::MAX);
    pair.assert_done("a new connection");
}

#[test]
fn a_device_that_fails_flushes_its_queue_pairs() {
    let mut pair = Pair::new(&FaultPlan::default());
    pair.post_all();
    let now_ns = pair.now_ns;
    pair.responder.order(now_ns, PortOrder::DeviceFatal);
    assert_eq!(statuses(&pair.responder), [Status::WorkRequestFlushed; 3]);
    assert_eq!(pair.responder.events(), [AsyncEvent::DeviceFatal]);
    assert_eq!(pair.responder.driver.port_state(), Err(PortError::DeviceFatal));
    pair.run_until(u64::MAX);
    assert_eq!(statuses(&pair.requester)[0], Status::RetryExceeded);
    assert_eq!(pair.responder.lost().tx_port_down, 0, "a device that has failed sends nothing");
    for order in [PortOrder::Down, PortOrder::Up, PortOrder::DeviceFatal] {
        assert_eq!(pair.responder.driver.order_port(pair.now_ns, order), Err(PortError::DeviceFatal));
    }
}

#[test]
fn an_order_without_effect_is_refused() {
    let mut pair = Pair::new(&FaultPlan::default());
    let driver = &mut pair.requester.driver;
    assert_eq!(driver.order_port(1, PortOrder::Up), Err(PortError::AlreadyUp));
    assert_eq!(driver.order_port(1, PortOrder::Down), Ok(()));
    assert_eq!(driver.order_port(2, PortOrder::Down), Err(PortError::AlreadyDown));
    assert_eq!(driver.order_port(2, PortOrder::Up), Ok(()));
    assert_eq!(pair.requester.events().len(), 3);
}

#[test]
fn a_plan_takes_the_port_down_and_up() {
    let mut pair = under("port-flap");
    let expected = [AsyncEvent::PortError(1), AsyncEvent::PortActive(1), AsyncEvent::GidChange(1)];
    assert_eq!(pair.responder.events(), expected);
    assert_eq!(pair.requester.events(), []);
    assert!(pair.now_ns >= FLAP_NS);
    assert!(pair.responder.lost().fault_dropped >= 2, "{:?}", pair.responder.lost());
    let journal = String::from_utf8(pair.journal.0.lock().unwrap().clone()).unwrap();
    assert_eq!(journal.lines().count(), 1, "{journal}");
    assert!(journal.contains("\"action\":\"port-down\",\"name\":\"port-flap\""), "{journal}");
}

#[test]
fn packets_behind_the_one_that_takes_the_port_down_are_lost_too() {
    let plan: FaultPlan = "port-down opcode=send position=first nth=1 for=1ms".parse().unwrap();
    let mut pair = Pair::new(&plan);
    pair.post_all();
    // All packets of the first message arrive with one call.
    pair.run_until(500_000);
    assert_eq!(pair.responder.counters().rx_vport_rdma_unicast_packets, 0);
    assert!(pair.responder.lost().fault_dropped >= 3, "{:?}", pair.responder.lost());
    pair.run_until(u64::MAX);
    pair.assert_done("a port that goes down within a run");
}

#[test]
fn an_order_ends_the_time_of_a_plan() {
    let plan: FaultPlan = "port-down opcode=request nth=1 for=60s".parse().unwrap();
    let mut pair = Pair::new(&plan);
    pair.post_all();
    pair.run_until(10_000_000);
    pair.now_ns = 10_000_000;
    assert_eq!(pair.responder.driver.port_state(), Ok(PortState::Down));
    let now_ns = pair.now_ns;
    pair.responder.order(now_ns, PortOrder::Up);
    pair.run_until(u64::MAX);
    pair.assert_done("a port that an order brings up");
    assert!(pair.now_ns < 60_000_000_000, "the plan's time is still waited for");
    assert_eq!(pair.responder.events().len(), 3);
}

#[test]
fn a_plan_lets_the_device_fail() {
    let plan: FaultPlan = "device-fatal opcode=request nth=4".parse().unwrap();
    let mut pair = Pair::new(&plan);
    pair.post_all();
    pair.run_until(u64::MAX);
    assert_eq!(pair.responder.events(), [AsyncEvent::DeviceFatal]);
    assert_eq!(pair.responder.driver.port_state(), Err(PortError::DeviceFatal));
    let statuses = statuses(&pair.requester);
    assert!(statuses.contains(&Status::RetryExceeded), "{statuses:?}");
    pair.assert_fired("device-fatal", &plan);
}
