#include "torch_backend/work.hpp"

#include <utility>

namespace gtopk::torch_backend {

void rethrow_for_python(const Error& error) {
  const std::string text = std::string("gtopk: ") + error.what();
  switch (error.kind()) {
    case ErrorKind::kInvalidArgument:
      TORCH_CHECK_VALUE(false, text);
    case ErrorKind::kUnsupported:
      TORCH_CHECK_NOT_IMPLEMENTED(false, text);
    case ErrorKind::kMismatch:
    case ErrorKind::kTimeout:
    case ErrorKind::kPeerFailed:
    case ErrorKind::kAborted:
    case ErrorKind::kTransport:
    case ErrorKind::kBootstrap:
      break;
  }
  C10_THROW_ERROR(DistBackendError, text);
}

namespace {

std::exception_ptr for_python(const std::exception_ptr& error) {
  if (!error) return nullptr;
  try {
    try {
      std::rethrow_exception(error);
    } catch (const Error& known) {
      rethrow_for_python(known);
    }
  } catch (...) {
    return std::current_exception();
  }
}

c10::intrusive_ptr<c10::ivalue::Future> future_of_tensors() {
  return c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()));
}

}  // namespace

GtopkWork::GtopkWork(int rank, c10d::OpType type, const char* title,
                     const std::vector<at::Tensor>& inputs, std::vector<at::Tensor> held,
                     std::vector<at::Tensor> result)
    : Work(rank, type, title, inputs),
      held_(std::move(held)),
      result_(std::move(result)),
      future_(future_of_tensors()) {}

Call GtopkWork::call(Completer& completer, std::chrono::milliseconds timeout,
                     std::function<void()> finally) {
  auto self = c10::intrusive_ptr<GtopkWork>::unsafe_reclaim_from_nonowning(this);
  Call call;
  call.done = [self, &completer, finally = std::move(finally)](std::exception_ptr error) {
    self->complete(completer, std::move(error), finally);
  };
  // Torch may drop the Work at once; the engine owns it, and with it the tensors, for as long as
  // the network reads or writes them. It is let go of on the completer's thread, for that may run
  // Python.
  call.keepalive = std::shared_ptr<void>(nullptr, [self, &completer](void*) mutable {
    auto last = std::make_shared<c10::intrusive_ptr<GtopkWork>>(self);
    self.reset();
    completer.run([last = std::move(last)]() mutable { last.reset(); });
  });
  if (timeout != c10d::kUnsetTimeout) call.timeout = timeout;
  return call;
}

void GtopkWork::complete(Completer& completer, std::exception_ptr error,
                         const std::function<void()>& finally) {
  if (!error && finally) {
    const at::NoGradGuard no_grad;
    finally();
  }
  error = for_python(error);
  finish(error);
  auto self = c10::intrusive_ptr<GtopkWork>::unsafe_reclaim_from_nonowning(this);
  completer.run([self = std::move(self), error = std::move(error)] {
    if (error) {
      self->future_->setError(error);
    } else {
      self->future_->markCompleted(c10::IValue(self->result_));
    }
  });
}

}  // namespace gtopk::torch_backend
