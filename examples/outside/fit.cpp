// fit.cpp: uses the library from C++: fits a line through points by gradient descent. C++
// has no keyword macros (ds_call, ds_initialize); it calls the functions behind them
// (ds_call_n, ds_initialize_with).
// SPDX-License-Identifier: MIT
#include <deepspeed.h>

#include <cstdio>
#include <vector>

int main()
{
    std::vector<float> x, y;
    for (int i = 0; i < 32; i++) {
        x.push_back(static_cast<float>(i) / 32);
        y.push_back(3 * x.back() + 1);
    }
    const ds_dims column{2, {32, 1}};
    ds_scope *scope = ds_scope_open();
    ds_tensor *in = ds_from_data(DS_F32, column, x.data());
    ds_tensor *want = ds_from_data(DS_F32, column, y.data());

    ds_linear_opts one{};
    one.out = 1;
    ds_module *line = ds_nn_linear_with(nullptr, "line", 1, one);
    ds_sgd_opts rate{};
    rate.lr = 0.5;
    ds_optim *sgd = ds_optim_sgd_with(line, rate);
    for (int step = 0; step < 200 && !ds_error(); step++) {
        ds_scope *turn = ds_scope_open();
        ds_optim_zero_grad(sgd);
        ds_backward(ds_mse_loss(ds_call_n(line, &in, 1), want));
        ds_optim_step(sgd);
        ds_scope_close(turn);
    }
    if (ds_error())
        std::fprintf(stderr, "fit: %s\n", ds_error());
    else
        std::printf("y = %.2f x + %.2f\n", ds_item(ds_module_param_at(line, 0, nullptr)),
                    ds_item(ds_module_param_at(line, 1, nullptr)));
    ds_optim_free(sgd);
    ds_module_free(line);
    ds_scope_close(scope);
    return ds_error() != nullptr;
}
