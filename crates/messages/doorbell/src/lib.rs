//! Messages over RDMA, with a software RNIC for machines without RDMA hardware.
//!
#![doc = include_str!("../README.md")]
//!
//! # Contents
//!
//! | to | use |
//! |---|---|
//! | open an RNIC | [`Device::open`], [`Device::builder`] |
//! | listen for peers, and connect to peers | [`Device::listen`], [`Device::connect`] |
//! | choose a protocol and its parameters | [`Options`], [`Config`] |
//! | send and receive in one thread, or in two threads | [`Blocking`], [`Blocking::split`] |
//! | send and receive in tasks of tokio | `Device::on_tokio`, with the feature `tokio` |
//! | poll without blocking calls | [`Blocking::into_inner`], [`MessageConnection`] |
//! | post work requests directly | [`Device::queue_pair`], [`verbs`] |
//! | test a program with faults, in virtual time | [`testing::Pair`] |
//!
//! [`exchange`] has the implementations of the protocols, receive buffers that connections share, and hubs, which
//! receive from many senders.
#![forbid(unsafe_code)]

mod device;
mod listener;
#[cfg(feature = "tokio")]
mod on_tokio;
mod opening;
mod queue_pair;
mod setup;
pub mod testing;

pub use doorbell_exchange as exchange;
pub use doorbell_verbs as verbs;

pub use device::{Device, DeviceBuilder, OpenError};
pub use exchange::asynchronous::Async;
pub use exchange::blocking::Blocking;
pub use exchange::{
    BufferedRead, BufferedWrite, Config, ConnectionError, Connector, DirectRead, DirectWrite, MessageConnection,
    MessageId, Received, SendReceive, SharedWrite,
};
pub use listener::{AcceptError, ConnectError, ListenError, Listener};
#[cfg(feature = "tokio")]
pub use on_tokio::{Tokio, TokioError, TokioListener};
pub use queue_pair::{OperationError, QueuePair, QueuePairError};
pub use setup::{EstablishError, Options};
pub use verbs::soft::{FaultPlan, FaultPlanError};
