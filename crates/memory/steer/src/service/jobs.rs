//! Jobs that the threads of the control plane have for the forwarding thread.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::{Duration, Instant};

use nix::sys::eventfd::EventFd;

use crate::Steer;

/// A job that the forwarding thread runs on the state of the box.
pub(crate) type Job = Box<dyn FnOnce(&mut Steer) + Send>;

/// Jobs that wait for the forwarding thread.
#[derive(Debug)]
pub(crate) struct Jobs {
    pub(crate) queue: Receiver<Job>,
    pub(crate) kick: Arc<EventFd>,
}

impl Jobs {
    /// Runs jobs until none waits or `budget` has passed, since packets of connected clients wait meanwhile. Returns
    /// the number of jobs done.
    pub(crate) fn work_off(&self, steer: &mut Steer, budget: Duration) -> usize {
        let _ = self.kick.read(); // reset the event, so that the next job wakes the thread again
        let begun = Instant::now();
        let mut done = 0;
        while done == 0 || begun.elapsed() < budget {
            let Ok(job) = self.queue.try_recv() else { return done };
            job(steer);
            done += 1;
        }
        // Jobs may remain. Set the event, so that the thread returns to the jobs after the packets that have arrived.
        let _ = self.kick.write(1);
        done
    }
}

impl AsFd for Jobs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.kick.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use nix::poll::{PollFd, PollFlags, PollTimeout, poll};

    use super::super::Settings;
    use super::super::plane::Plane;
    use super::*;
    use crate::{Config, Limits};

    fn is_woken(jobs: &Jobs) -> bool {
        poll(&mut [PollFd::new(jobs.as_fd(), PollFlags::POLLIN)], PollTimeout::ZERO) == Ok(1)
    }

    #[test]
    fn a_job_wakes_the_box_which_runs_all_waiting_jobs() {
        let own = Settings::for_tests();
        let mut steer = Steer::new(Config { address: own.address, limits: Limits::default(), seed: 1 });
        let (plane, jobs) = Plane::new(own, false, |_| {}).unwrap();
        assert!(!is_woken(&jobs));
        let waiting: Vec<_> = (0..100)
            .map(|number| {
                let plane = Arc::clone(&plane);
                std::thread::spawn(move || plane.with(move |_| number).unwrap())
            })
            .collect();
        let mut done = 0;
        while done < 100 {
            // The event is set while jobs wait. Without the event, the test fails after a minute.
            let woken = poll(&mut [PollFd::new(jobs.as_fd(), PollFlags::POLLIN)], PollTimeout::from(60_000_u16));
            assert_eq!(woken, Ok(1), "{done} jobs were done");
            done += jobs.work_off(&mut steer, Duration::MAX);
        }
        assert!((0..100).eq(waiting.into_iter().map(|thread| thread.join().unwrap())));
        // The last thread may have set the event after its job was done: the call resets the event.
        assert_eq!(jobs.work_off(&mut steer, Duration::MAX), 0);
        assert!(!is_woken(&jobs));
        // With a budget of zero, `work_off` does one job, and sets the event for the remaining jobs.
        let order = |plane: &Plane| plane.jobs.send(Box::new(|_: &mut Steer| {})).unwrap();
        (0..2).for_each(|_| order(&plane));
        assert_eq!(jobs.work_off(&mut steer, Duration::ZERO), 1);
        assert!(is_woken(&jobs));
        assert_eq!(jobs.work_off(&mut steer, Duration::MAX), 1);
        (0..3).for_each(|_| order(&plane));
        assert_eq!(jobs.work_off(&mut steer, Duration::MAX), 3);
    }
}
