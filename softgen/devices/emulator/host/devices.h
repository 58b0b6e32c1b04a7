// Devices that hold rows together. They take turns: one goes on until all that its threads can do is
// poll its mailbox. Launches of a device follow each other, and wait for no other device's.
//
// Included by main.cpp, behind what runs a launch.

// A launch with all that it takes.
struct Prepared {
  Job job;
  std::vector<Operand> operands;
  std::vector<void*> arguments;
  Work work;
};

struct Device {
  std::deque<Prepared*> launches;  // that have not ended; the first may be running
  bool running = false;
  int64_t next_block = 0;  // of the first launch
  // What is elsewhere while another device is at work:
  Launch launch{};
  std::vector<Operand> operands;
  Work work;
};

void exchange_places(Device& device) {
  std::swap(launch, device.launch);
  std::swap(operands, device.operands);
  std::swap(work, device.work);
}

void come(Device& device) {
  exchange_places(device);
  if (!device.running) return;
  launch.block->static_shared.unpark();
  launch.block->dynamic_shared.unpark();
  set_builtins(device.launches.front()->job);
}

void leave(Device& device) {
  if (device.running) {
    launch.block->static_shared.park();
    launch.block->dynamic_shared.park();
  }
  exchange_places(device);
}

void begin_launch(Device& device) {
  Prepared& next = *device.launches.front();
  operands = std::move(next.operands);
  launch.arguments = std::move(next.arguments);
  set_up(next.job);
  set_builtins(next.job);
  work = {};
  device.running = true;
  go_on_from(next.job, next.job.first_block);
  device.next_block = next.job.first_block + launch.alive;
}

void end_launch(Device& device) {
  Prepared& ended = *device.launches.front();
  require_results(ended.job);
  ended.operands = std::move(operands);
  ended.work = work;
  device.running = false;
  device.launches.pop_front();
}

// Lets those that poll look again at their next turn.
void let_poll() {
  bool any = false;
  for (int rank = 0; rank < launch.alive; ++rank) {
    for (Thread& thread : launch.blocks[static_cast<size_t>(rank)].threads) {
      if (thread.state != State::kPolling) continue;
      thread.state = State::kReady;
      any = true;
    }
  }
  if (!any) fail(why_stuck());
}

void take_turn(Device& device) {
  while (!device.launches.empty()) {
    const Job& job = device.launches.front()->job;
    if (!device.running) {
      if (device.launches.front()->job.late-- > 0) return;
      begin_launch(device);
    }
    flush_subnormals(job.flush_subnormals != 0);
    run_alive();
    flush_subnormals(false);
    if (!have_ended()) return let_poll();
    if (device.next_block < job.grid) {
      go_on_from(job, device.next_block);
      device.next_block += launch.alive;
    } else {
      end_launch(device);
    }
  }
}

// Takes the launches of all devices, the first of which is known.
std::vector<Prepared> receive_launches(Job job) {
  std::vector<Prepared> launches;
  while (true) {
    set_up_operands(job);
    launches.push_back({job, std::move(operands), std::move(launch.arguments), {}});
    if (job.left == 0) return launches;
    if (!receive(&job, sizeof(job))) fail("the input ended between launches");
  }
}

std::deque<Device> devices;  // kept, as stacks are never given back

void run_devices(const Job& first) {
  mailboxes.clear();
  for (int64_t i = 0; i < first.devices; ++i) {
    const std::string name = format("mailbox %lld", static_cast<long long>(i));
    mailboxes.push_back(std::make_unique<Array>(name, first.mailbox, 1, 1, 1, 0));
    mailboxes.back()->clear();
    if (devices.size() < mailboxes.size()) devices.emplace_back();
  }
  std::vector<Prepared> launches = receive_launches(first);
  for (Prepared& one : launches) {
    devices[static_cast<size_t>(one.job.device)].launches.push_back(&one);
  }
  time_limit = first.seconds;
  alarm(static_cast<unsigned>(first.seconds));
  for (bool busy = true; busy;) {
    busy = false;
    for (size_t i = 0; i < mailboxes.size(); ++i) {
      if (devices[i].launches.empty()) continue;
      busy = true;
      device_at_work = static_cast<int64_t>(i);
      come(devices[i]);
      take_turn(devices[i]);
      leave(devices[i]);
    }
  }
  alarm(0);
  for (Prepared& one : launches) {
    operands = std::move(one.operands);
    send_results(one.job, one.work);
  }
  for (const auto& mailbox : mailboxes) {
    if (!mailbox->gaps_are_intact()) fail(format("a kernel wrote outside of %s", mailbox->name()));
    send(mailbox->data() + kAlarmOffset, sizeof(uint32_t));
  }
  mailboxes.clear();
}
