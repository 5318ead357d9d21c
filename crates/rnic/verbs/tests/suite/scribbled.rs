//! A hostile peer shares memory with a device. The peer writes arbitrary packets and arbitrary words to the shared
//! memory, and the device must survive them.
//!
//! The test builds the peer from raw bytes, without code of the device.

use doorbell_verbs_conformance::common;

use std::io::{IoSlice, IoSliceMut};
use std::net::UdpSocket;
use std::num::NonZeroUsize;
use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr::NonNull;
use std::time::Duration;

use common::*;
use doorbell_testing::Rng;
use doorbell_verbs::soft::{LinkChoice, SoftOptions};
use doorbell_verbs::{
    Access, AddressVector, Device, MemoryKind, Psn, QpAttributes, QpKind, Qpn, Region, SendOperation,
};
use nix::fcntl::{FcntlArg, SealFlag, fcntl};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{
    AddressFamily, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, connect, recvmsg, sendmsg, socket,
};

const PORT: u16 = 4791;
const CONTROL: usize = 4096;
const RING: usize = 2 << 20;
const FILE: usize = CONTROL + 2 * RING;
const MAGIC: &[u8] = b"\xffdoorbel";
/// The magic bytes of a datagram to the first engine, whose number is in four bits of them.
const MAGIC_TO_ENGINE_0: &[u8] = b"\xffdoor\x02el";

/// Number of rounds of each kind of attack.
const ROUNDS: usize = 3000;

/// The hostile peer's mapping of the shared rings. The peer writes to the first ring.
struct Raw {
    _udp: UdpSocket,
    _connection: OwnedFd,
    base: NonNull<std::ffi::c_void>,
    tail: usize,
}

impl Raw {
    /// Connects the hostile peer to `device`, which then shares memory with the peer. The test plays the peer, so `own`
    /// is the address of the peer.
    fn meet(own: &str, device: &Device) -> Self {
        let udp = UdpSocket::bind((own, PORT)).unwrap();
        udp.set_read_timeout(Some(PATIENCE)).unwrap();
        let namespace = std::fs::read_link("/proc/self/ns/net").unwrap();
        let host = device.attributes().address;
        let name = UnixAddr::new_abstract(format!("doorbell-link/{}/{host}/{PORT}", namespace.display()).as_bytes());
        let connection = socket(AddressFamily::Unix, SockType::SeqPacket, SockFlag::SOCK_CLOEXEC, None).unwrap();
        connect(connection.as_raw_fd(), &name.unwrap()).unwrap();
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(&*std::ffi::CString::new(file_of(own)).unwrap(), flags).unwrap();
        nix::unistd::ftruncate(&file, FILE as i64).unwrap();
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).unwrap();
        // Hello of the peer: kind 1, version 2, the peer's address, its port, a nonce, and the engines of both ends.
        let address = own.parse::<std::net::Ipv4Addr>().unwrap().to_ipv6_mapped().octets();
        let nonce = [7; 16];
        let hello = [MAGIC, &[1, 2, 0], &address, &PORT.to_le_bytes(), &nonce, &[0, 0]].concat();
        let rights = [file.as_raw_fd()];
        let control = [ControlMessage::ScmRights(&rights)];
        sendmsg::<()>(connection.as_raw_fd(), &[IoSlice::new(&hello)], &control, MsgFlags::empty(), None).unwrap();
        // Welcome of the device: kind 2, version 2, accepted.
        let mut welcome = [0; 64];
        let mut vector = [IoSliceMut::new(&mut welcome)];
        let length = recvmsg::<()>(connection.as_raw_fd(), &mut vector, None, MsgFlags::empty()).unwrap().bytes;
        assert_eq!(&welcome[..length], [MAGIC, &[2, 2, 0, 1]].concat());
        // Challenge of the device: kind 4, the peer's nonce, the device's nonce. Proof of the peer: kind 3, the
        // device's nonce.
        let mut challenge = [0; 64];
        let length = udp.recv(&mut challenge).unwrap();
        assert_eq!(&challenge[..25], [MAGIC_TO_ENGINE_0, &[4], &nonce].concat());
        let proof = [MAGIC, &[3], &challenge[25..length]].concat();
        sendmsg::<()>(connection.as_raw_fd(), &[IoSlice::new(&proof)], &[], MsgFlags::empty(), None).unwrap();
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: the kernel chooses the address of this new mapping, and the file is `FILE` bytes long.
        let base = unsafe { mmap(None, NonZeroUsize::new(FILE).unwrap(), access, MapFlags::MAP_SHARED, &file, 0) };
        Self { _udp: udp, _connection: connection, base: base.unwrap(), tail: 0 }
    }

    /// Stores a word at an offset of the file.
    fn store(&self, at: usize, word: u64) {
        assert!(at.is_multiple_of(8) && at < FILE);
        // SAFETY: eight aligned bytes of the mapping. The device accesses them only by atomics and raw copies.
        unsafe { std::sync::atomic::AtomicU64::from_ptr(self.base.as_ptr().byte_add(at).cast()) }
            .store(word, std::sync::atomic::Ordering::Release);
    }

    fn put(&self, at: usize, bytes: &[u8]) {
        for (index, &byte) in bytes.iter().enumerate() {
            let at = CONTROL + (at + index) % RING;
            // SAFETY: the byte lies within the mapping. The device accesses it only by atomics and raw copies.
            unsafe { self.base.as_ptr().byte_add(at).cast::<u8>().write_volatile(byte) }
        }
    }

    /// Writes a record of the ring with arbitrary packets, in the same steps as a device.
    fn push(&mut self, bytes: &[u8], segment_bytes: usize) {
        let word = 1 << 63 | 64 << 34 | (segment_bytes as u64) << 17 | bytes.len() as u64;
        let start = self.tail % RING;
        self.put(start + 8, bytes);
        self.tail += (8 + bytes.len()).next_multiple_of(64);
        self.store(CONTROL + self.tail % RING, 0);
        self.store(CONTROL + start, word);
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: no reference to the mapping remains.
        unsafe { munmap(self.base, FILE).unwrap() };
    }
}

/// Returns the name of the file that the hostile peer with the address `own` shares.
fn file_of(own: &str) -> String {
    format!("rings-of-{own}")
}

/// Returns whether this process maps the file that the hostile peer with the address `own` shares.
fn is_mapped(own: &str) -> bool {
    std::fs::read_to_string("/proc/self/maps").unwrap().contains(&file_of(own))
}

fn open() -> Device {
    open_soft(SoftOptions { link: Some(LinkChoice::Auto), publish: false, ..SoftOptions::default() })
}

/// Creates one queue pair of each kind, connected to the address `peer`.
fn sides(device: &Device, peer: &str) -> Vec<Side> {
    let sides = [QpKind::Rc, QpKind::Uc, QpKind::Ud].map(|kind| {
        let plan = Plan { retry_count: 7, timeout: 18, ..Plan::new(kind) };
        let side = plan.side(device);
        side.qp.modify(&plan.to_init()).unwrap();
        let (address, dest_qpn) = (AddressVector::to(peer.parse().unwrap()), Qpn::new(0x77));
        let rtr = plan.to_rtr(&side, Psn::new(0));
        let rtr =
            QpAttributes { address: rtr.address.map(|_| address), dest_qpn: rtr.dest_qpn.map(|_| dest_qpn), ..rtr };
        side.qp.modify(&rtr).unwrap();
        side.qp.modify(&plan.to_rts(Psn::new(0))).unwrap();
        side
    });
    sides.into()
}

/// Fills `bytes` with a random packet. The packet often names an existing queue pair and existing memory.
fn packet(rng: &mut Rng, sides: &[Side], open_to_all: &Region, psn: u32, bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = rng.next() as u8);
    let side = &sides[rng.below(sides.len() as u64) as usize];
    let known = [0x00, 0x02, 0x04, 0x06, 0x0a, 0x0b, 0x0c, 0x10, 0x11, 0x12, 0x13, 0x14, 0x17, 0x20, 0x2a, 0x64, 0x65];
    let mut header = [0; 28];
    header[0] = if rng.below(8) > 0 { known[rng.below(known.len() as u64) as usize] } else { rng.next() as u8 };
    header[1] = if rng.below(8) > 0 { 0 } else { rng.next() as u8 };
    header[2..4].copy_from_slice(&[0xff, 0xff]);
    let qpn = if rng.below(16) > 0 { side.qp.qpn().get() } else { rng.next() as u32 };
    header[4..8].copy_from_slice(&(qpn & 0xff_ffff).to_be_bytes());
    let psn = if rng.below(8) > 0 { psn } else { rng.next() as u32 };
    header[8..12].copy_from_slice(&(psn & 0xff_ffff).to_be_bytes());
    header[8] = (rng.below(2) as u8) << 7;
    let at = rng.below(2 * open_to_all.len() as u64);
    header[12..20].copy_from_slice(&(open_to_all.address() + at).to_be_bytes());
    header[20..24].copy_from_slice(&open_to_all.rkey().get().to_be_bytes());
    header[24..28].copy_from_slice(&(rng.below(10_000) as u32).to_be_bytes());
    let length = bytes.len().min(header.len());
    bytes[..length].copy_from_slice(&header[..length]);
}

fn exchange(a: &Side, b: &Side, number: u64) {
    b.post_recv(number, &[]);
    a.post(number, SendOperation::Send, &[]);
    a.expect(number);
    b.expect(number);
}

/// Runs `misbehave`, the attack of the hostile peer with the address `own`. Checks that the device still serves other
/// peers. Memory that is closed to the hostile peer must stay unchanged.
fn survives(own: &str, misbehave: impl Fn(&mut Raw, &mut Rng, &[Side], &Region, usize)) {
    let seed = std::env::var("DOORBELL_SEED").ok().map_or(1, |text| text.parse().expect("a number"));
    eprintln!("DOORBELL_SEED={seed}");
    let mut rng = Rng::new(seed);
    let device = open();
    let (a, b) = Plan::rc().connect(&(device.clone(), open()));
    exchange(&a, &b, 1);
    let sides = sides(&device, own);
    let region = |access| sides[0].pd.allocate(8192, access, MemoryKind::Plain).unwrap();
    let (secret, open_to_all) = (region(Access::LOCAL_WRITE), region(ALL_ACCESS));
    secret.copy_in(0, &pattern(8192, 5));
    let mut raw = Raw::meet(own, &device);
    for round in 0..ROUNDS {
        misbehave(&mut raw, &mut rng, &sides, &open_to_all, round);
        device.drive();
        if round % 100 == 0 {
            exchange(&a, &b, round as u64);
            for side in &sides {
                while !reap_within(&side.cq, 1, Duration::ZERO).is_empty() {}
            }
        }
    }
    assert_bytes(&secret, 0, &pattern(8192, 5), "memory that no peer may write");
    // When the peer leaves, the device unmaps the shared rings.
    drop(raw);
    eventually("the rings of the peer are unmapped", || {
        device.drive();
        !is_mapped(own)
    });
    exchange(&a, &b, 9_000_000);
}

#[test]
fn packets_of_any_kind_in_a_ring_do_no_harm() {
    survives("127.77.46.1", |raw, rng, sides, open_to_all, round| {
        let longest = [100, 300, 4200, 65_507][rng.below(4) as usize];
        let mut bytes = vec![0; 1 + rng.below(longest) as usize];
        let segment = (bytes.len().div_ceil(1 + rng.below(64) as usize)).max(1);
        for packet_bytes in bytes.chunks_mut(segment) {
            packet(rng, sides, open_to_all, round as u32, packet_bytes);
        }
        // As a part of the attack, write without waiting for room in the ring.
        raw.push(&bytes, segment);
    });
}

#[test]
fn a_ring_scribbled_over_does_no_harm() {
    survives("127.77.46.2", |raw, rng, sides, open_to_all, round| {
        if round % 50 == 0 {
            // Write a valid record at each possible place, so that the ring never looks empty to the device.
            let word = 1 << 63 | 64 << 34 | 40 << 17 | 40;
            (0..RING).step_by(64).for_each(|at| raw.store(CONTROL + at, word));
        }
        let mut bytes = [0; 200];
        packet(rng, sides, open_to_all, round as u32, &mut bytes);
        raw.put(rng.below(RING as u64) as usize, &bytes);
        for _ in 0..20 {
            let at = rng.below(FILE as u64 / 8) as usize * 8;
            // Choose a word of the first 512 bytes, which hold the control words, in a quarter of the cases. The
            // written word usually has a valid length.
            let at = if rng.below(4) == 0 { at % 512 } else { at };
            let possible = 1 << 63 | rng.below(2000) << 17 | rng.below(60_000);
            let word = if rng.below(64) == 0 { rng.next() } else { possible };
            // An invalid word at the start of a record ends the sharing of memory, so write to such places rarely.
            if at < CONTROL || !at.is_multiple_of(64) || round % 1000 == 999 {
                raw.store(at, word);
            }
        }
    });
}
