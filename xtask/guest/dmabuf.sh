# Moves bytes to a DMA buffer of vgem, a graphics card without hardware. The socket of rxe uses the port of RoCE.
modprobe vgem || fail "there is no module vgem"
timeout 300 doorbell run --udp-port 5000 -- dmabuf vgem > /tmp/said 2>&1 || fail "dmabuf vgem: $(tail -3 /tmp/said)"
