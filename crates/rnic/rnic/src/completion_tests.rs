use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use doorbell_verbs_core::{Completion, Notifier, Notify, Overrun};
use doorbell_wire::Qpn;

use crate::completion::{CompletionQueue, CompletionSink as _};

fn numbered(wr_id: u64) -> Completion {
    Completion { wr_id, ..Completion::default() }
}

/// Returns a notifier and the counter of its calls.
fn counting() -> (Notifier, Arc<AtomicUsize>) {
    let count = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&count);
    let notifier: Notifier = Arc::new(move || {
        counted.fetch_add(1, Ordering::Relaxed);
    });
    (notifier, count)
}

#[test]
fn a_queue_of_one_holds_one_and_reports_its_overrun() {
    let queue = CompletionQueue::new(1, None);
    assert_eq!(queue.push_all(&[numbered(1)]), Ok(()));
    assert_eq!(queue.push_all(&[numbered(2)]), Err(Overrun));
    let mut out = [Completion::default(); 4];
    assert_eq!(queue.poll(&mut out), Ok(1));
    assert_eq!(out[0].wr_id, 1);
    assert_eq!(queue.poll(&mut out), Err(Overrun), "poll must report the lost completion");
}

#[test]
fn a_queue_is_resized_unless_that_lost_completions() {
    let queue = CompletionQueue::new(2, None);
    queue.push_all(&[numbered(1), numbered(2)]).unwrap();
    assert!(!queue.resize(1));
    assert_eq!(queue.depth(), 2);
    assert!(queue.resize(3));
    assert_eq!(queue.push_all(&[numbered(3)]), Ok(()));
    assert_eq!(queue.push_all(&[numbered(4)]), Err(Overrun));
}

#[test]
fn notifications_fire_once_and_only_for_the_requested_kind() {
    let (notifier, count) = counting();
    let queue = CompletionQueue::new(16, Some(notifier));
    queue.request_notification(Notify::Solicited);
    queue.push_all(&[numbered(1)]).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 0);
    queue.push_all(&[Completion { solicited: true, ..numbered(2) }]).unwrap();
    queue.push_all(&[numbered(3)]).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 1);
    queue.request_notification(Notify::Solicited);
    queue.request_notification(Notify::Next);
    queue.request_notification(Notify::Solicited); // does not weaken the armed notification
    queue.push_all(&[numbered(4)]).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
}

#[test]
fn arming_fires_at_once_for_completions_that_came_before() {
    let (notifier, count) = counting();
    let queue = CompletionQueue::new(16, Some(notifier));
    queue.push_all(&[numbered(1)]).unwrap();
    assert!(queue.request_notification(Notify::Solicited));
    assert_eq!(count.load(Ordering::Relaxed), 0, "a completion that is not solicited raised a notification");
    assert!(!queue.request_notification(Notify::Next));
    assert_eq!(count.load(Ordering::Relaxed), 1);
    assert!(queue.request_notification(Notify::Next));
    assert_eq!(count.load(Ordering::Relaxed), 1, "expected one notification for each completion");
    queue.push_all(&[numbered(2), Completion { qpn: Qpn::new(7), ..numbered(3) }]).unwrap();
    assert_eq!(count.load(Ordering::Relaxed), 2);
    queue.purge(Qpn::new(7));
    queue.push_all(&[numbered(4)]).unwrap();
    assert_eq!(queue.poll(&mut [Completion::default(); 2]), Ok(2));
    assert!(queue.request_notification(Notify::Next), "no notification covers the last completion yet");
    assert_eq!(count.load(Ordering::Relaxed), 3);
}
