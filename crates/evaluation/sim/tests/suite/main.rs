//! Integration tests of the crate that can share a process. Each module has one subject.

mod common;

mod advise;
mod bottlenecks;
mod contradictions;
mod deaths;
mod digests;
mod exchange;
mod exchange_conformance;
mod far;
mod far_points;
mod fitted;
mod forty_questions;
mod forty_requests;
mod halves;
mod many_to_one;
mod middlebox;
mod pages;
mod predictions;
mod questions;
mod reproduction;
mod sessions;
mod stations;
mod stuck;
mod topologies;
mod unacknowledged;
mod verbs_conformance;
