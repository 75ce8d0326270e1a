(** The numbers of [FORMS] and [OPENVINO] in src/intact8/arithmetic/tie_free.py; tests/proofs compares them. *)

From Intact Require Import Contract.

Definition FORMS_affine := Build_roundings 7 5 6.
Definition FORMS_leaky := Build_roundings 9 7 0.
Definition FORMS_sum := Build_roundings 4 0 8.
Definition FORMS_scaled := Build_roundings 6 0 0.
Definition FORMS_resize := Build_roundings 1 0 0.
Definition FORMS_fused := Build_roundings 7 5 6.
Definition FORMS_mean := Build_roundings 6 0 0.

Definition OPENVINO_affine := Build_roundings 6 5 0.
Definition OPENVINO_leaky := Build_roundings 8 5 0.
Definition OPENVINO_fused := Build_roundings 15 7 12.
Definition OPENVINO_sum := Build_roundings 7 0 17.
Definition OPENVINO_scaled := Build_roundings 9 0 0.
Definition OPENVINO_mean := Build_roundings 7 0 7.
Definition OPENVINO_resize := Build_roundings 1 0 0.
